# SPDX-License-Identifier: Apache-2.0
"""Names of devices and dtypes on the command line."""

from __future__ import annotations

import torch

DTYPES: dict[str, torch.dtype] = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f64": torch.float64,
    "c64": torch.complex64,
    "c128": torch.complex128,
    "c32": torch.complex32,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
    "bool": torch.bool,
    "f8_e4m3": torch.float8_e4m3fn,
    "f8_e5m2": torch.float8_e5m2,
}


def open_device(name: str) -> torch.device:
    """Makes the device usable and returns it with its index; `flagos` is registered by importing its package."""
    kind = name.split(":")[0]
    if kind == "flagos":
        import torch_fl  # noqa: F401
    if kind == "cpu":
        return torch.device("cpu")
    return torch.device(name if ":" in name else f"{name}:0")


def chosen_dtypes(text: str, supported: set[torch.dtype]) -> list[str]:
    """Names of the dtypes of --dtypes that are supported; `any` means one: the first of DTYPES that is."""
    if text == "any":
        return [name for name, dtype in DTYPES.items() if dtype in supported][:1]
    names = [n.strip() for n in text.split(",") if n.strip()]
    unknown = [n for n in names if n not in DTYPES]
    if unknown:
        raise SystemExit(f"unknown dtype {', '.join(unknown)}; known: any, {', '.join(DTYPES)}")
    return [n for n in names if DTYPES[n] in supported]
