# SPDX-License-Identifier: Apache-2.0
"""From flagos tensors to those of the backend that owns the devices, and back, without copying."""

from __future__ import annotations

import torch

from torch_fl import _C


def to_native(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a tensor of the backend that owns the devices, e.g. for a library that knows only that one.

    The result shares bytes, shape and strides; it has no autograd history and a version counter of its own, so a write
    through it is not seen by autograd. Work goes to the same streams, so nothing has to be synchronised.

    Args:
        tensor: a strided flagos tensor; a tensor of the owning backend is returned as it is.

    Raises:
        RuntimeError: the devices are not delegated to another backend (`torch-fl info` says who owns them), or the
            tensor requires grad: use `tensor.detach()`.
        NotImplementedError: the tensor is not strided.
    """
    return _C._to_native(tensor)


def from_native(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a flagos tensor; the inverse of `to_native`, with the same rules.

    Args:
        tensor: a strided tensor of the backend that owns the devices; a flagos tensor is returned as it is.

    Raises:
        RuntimeError: the devices are not delegated, the tensor lives elsewhere, or it requires grad.
        NotImplementedError: the tensor is not strided.
    """
    return _C._from_native(tensor)
