# SPDX-License-Identifier: Apache-2.0
"""A program that ends right after `backward()` may abort on newer torch, on any device with autograd threads.

torch.autograd stores the caller's contextvars in the thread-local state that the graph task carries to the device's
thread. When that thread drops the last reference, it has to take the GIL; if the interpreter is being finalized by
then, Python ends the thread inside a destructor and the process aborts with "terminate called without an active
exception" (pytorch issue 190489). Giving the GIL away once before finalization lets the thread finish.

For torch 2.12 and later (2.11 does not do it, 2.15 does, what lies between was not tried); to be deleted when the
oldest supported torch has that issue fixed.
"""

from __future__ import annotations

import atexit
import time

import torch

from torch_fl import flagos

_PAUSE = 0.02  # seconds; the thread waits for nothing but the GIL


def apply() -> None:
    """Registers the pause at exit where this torch needs it. May be called again; it is registered once."""
    atexit.unregister(_let_autograd_threads_finish)
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 12):
        atexit.register(_let_autograd_threads_finish)


def _let_autograd_threads_finish() -> None:
    if flagos.is_initialized():
        time.sleep(_PAUSE)
