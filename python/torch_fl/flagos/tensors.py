# SPDX-License-Identifier: Apache-2.0
"""Legacy tensor types: `torch.flagos.FloatTensor(2, 3)` and `isinstance(t, torch.flagos.FloatTensor)`."""

from __future__ import annotations

from typing import Any

import torch


class _LegacyType(type):
    dtype: torch.dtype

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.device.type == "flagos" and instance.dtype == cls.dtype

    def __call__(cls, *args: Any, device: Any = "flagos") -> torch.Tensor:
        """No argument: an empty tensor. Integers or a torch.Size: a tensor of that shape, not filled. Else: data."""
        if len(args) == 1 and isinstance(args[0], torch.Size):
            args = tuple(args[0])
        if all(isinstance(size, int) for size in args):
            return torch.empty(args or (0,), dtype=cls.dtype, device=device)
        if len(args) == 1:
            return torch.as_tensor(args[0], dtype=cls.dtype, device=device)
        raise TypeError(f"{cls.__name__}: expected sizes, one sequence or one tensor, but got {len(args)} arguments")


def _legacy_type(name: str, dtype: torch.dtype) -> _LegacyType:
    return _LegacyType(name, (), {"__module__": "torch.flagos", "dtype": dtype, "is_flagos": True, "is_sparse": False})


FloatTensor = _legacy_type("FloatTensor", torch.float32)
DoubleTensor = _legacy_type("DoubleTensor", torch.float64)
HalfTensor = _legacy_type("HalfTensor", torch.float16)
BFloat16Tensor = _legacy_type("BFloat16Tensor", torch.bfloat16)
ByteTensor = _legacy_type("ByteTensor", torch.uint8)
CharTensor = _legacy_type("CharTensor", torch.int8)
ShortTensor = _legacy_type("ShortTensor", torch.int16)
IntTensor = _legacy_type("IntTensor", torch.int32)
LongTensor = _legacy_type("LongTensor", torch.int64)
BoolTensor = _legacy_type("BoolTensor", torch.bool)
