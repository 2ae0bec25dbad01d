# SPDX-License-Identifier: Apache-2.0
"""`Tensor.__dlpack__` and `__dlpack_device__` know no renamed outside device: they raise "Unknown device type".

A flagos tensor whose memory another backend owns is exported as that backend's tensor, which any consumer understands.
Imports need no patch: `torch.from_dlpack` gives the backend's tensor, and `torch_fl.from_native` makes it a flagos one.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_fl import native
from torch_fl._compat import Patch, record

_NAMES = ("__dlpack__", "__dlpack_device__")


def apply() -> None:
    """Puts both methods in front of torch's. May be called again; the second call does nothing."""
    for name in _NAMES:
        original = getattr(torch.Tensor, name)
        if not hasattr(original, "_torch_fl"):
            setattr(torch.Tensor, name, _through_native(original))
            record(Patch(f"torch.Tensor.{name}", "2.10-", "flagos tensors are exported as the owning backend's"))


def _through_native(original: Any) -> Any:
    @functools.wraps(original)
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.device.type != "flagos":
            return original(self, *args, **kwargs)
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        return original(native.to_native(self), *args, **kwargs)

    method._torch_fl = True  # type: ignore[attr-defined]
    return method
