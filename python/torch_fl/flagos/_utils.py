# SPDX-License-Identifier: Apache-2.0
"""How a caller names a device. torch's serialization code calls `torch.flagos._utils._get_device_index`."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from torch_fl import _C

DeviceLike: TypeAlias = torch.device | int | str | None


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """Index of a device given as `torch.device`, "flagos:1", 1, a `torch.flagos.device` or None.

    None and "flagos" mean the current device if `optional`. With `allow_cpu`, a CPU device gives -1. Integers are
    returned as they are; the caller checks the range.

    Raises:
        ValueError: a device of another kind, or none at all without `optional`.
        RuntimeError: text that names no device, such as "flagos1".
    """
    if isinstance(device, bool):
        raise TypeError(f"expected a flagos device, but got: {device!r}")
    if isinstance(device, int):
        return device
    index = getattr(device, "idx", None)
    if isinstance(index, int):  # a torch.flagos.device context manager
        return index
    if isinstance(device, str):
        device = _parse(device)
    if isinstance(device, torch.device):
        if device.type == "cpu" and allow_cpu:
            return -1
        if device.type != "flagos":
            raise ValueError(f"Expected a flagos device, but got: {device}")
        if device.index is not None:
            return device.index
    elif device is not None:
        raise TypeError(f"expected a torch.device, an index, a string or None, but got: {type(device).__name__}")
    if not optional:
        raise ValueError(f"Expected a flagos device with an index or an integer, but got: {device}")
    return _C._current_device()


def _parse(text: str) -> torch.device:
    try:
        return torch.device(text)
    except RuntimeError as error:
        raise RuntimeError(
            f"Invalid device string: '{text}'; accepted forms are 'flagos' and 'flagos:<index>'"
        ) from error


def _require_device(call: str) -> None:
    """Raises RuntimeError with the reason when this machine has no flagos device."""
    if _C._device_count() == 0:
        raise RuntimeError(f"torch.flagos.{call}: no flagos device: {_C._unavailable_reason()}")


def _checked_index(device: Any, call: str, error: type[Exception] = RuntimeError) -> int:
    """Index of an existing device, the current one for None.

    Raises:
        RuntimeError: there is no device at all; says why.
        error: the index is out of range; names call, value and range.
    """
    index = _get_device_index(device, optional=True)
    count = _C._device_count()
    if count == 0:
        _require_device(call)
    if not 0 <= index < count:
        raise error(f"torch.flagos.{call}: invalid device {index}, valid are 0..{count - 1}")
    return index
