# SPDX-License-Identifier: Apache-2.0
"""Mixed precision: torch.amp with the device filled in."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.amp  # noqa: F401 - named below through torch


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that `torch.autocast("flagos", dtype=...)` accepts."""
    return [torch.float16, torch.bfloat16]


def is_autocast_enabled() -> bool:
    """Whether autocast is on for flagos in this thread."""
    return torch.is_autocast_enabled("flagos")


def set_autocast_enabled(enabled: bool) -> None:
    """Switches autocast for flagos on or off in this thread."""
    torch.set_autocast_enabled("flagos", enabled)


def get_autocast_dtype() -> torch.dtype:
    """The dtype that autocast uses for flagos."""
    return torch.get_autocast_dtype("flagos")


def set_autocast_dtype(dtype: torch.dtype) -> None:
    """Sets the dtype that autocast uses for flagos."""
    torch.set_autocast_dtype("flagos", dtype)


class autocast(torch.amp.autocast_mode.autocast):
    """`torch.autocast("flagos", ...)`."""

    def __init__(self, enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool | None = None):
        super().__init__("flagos", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler("flagos", ...)`."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__("flagos", *args, **kwargs)


custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="flagos")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="flagos")
