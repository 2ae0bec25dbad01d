# SPDX-License-Identifier: Apache-2.0
"""Which side of a comparison runs, and what torch takes for the process's accelerator meanwhile.

torch knows one accelerator: flagos, once it is registered. A backward pass on another one (`--against` an accelerator)
fails inside torch unless the preloaded switch of tools/gpu/accelerator_switch.cpp makes that one the accelerator while
the reference runs; without the switch the reference's backward passes raise and are counted as such.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import torch

_current = "reference"


def current_side() -> str:
    """Whose call runs at the moment: "reference" or "device" (crash reports and the suite's own tests ask)."""
    return _current


@contextlib.contextmanager
def on_side(side: str, reference: torch.device) -> Iterator[None]:
    """Marks the block as a call of this side."""
    global _current
    _current = side
    switch = _switch() if side == "reference" and reference.type != "cpu" else None
    if switch is not None:
        switch.value = int(getattr(torch._C._autograd.DeviceType, reference.type.upper()))
    try:
        yield
    finally:
        _current = "reference"
        if switch is not None:
            switch.value = -1


def _switch() -> ctypes.c_int | None:
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(None), "torch_fl_accelerator")
    except ValueError:
        return None
