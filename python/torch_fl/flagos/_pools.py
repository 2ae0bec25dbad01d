# SPDX-License-Identifier: Apache-2.0
"""Private pools: memory that only chosen allocations come from."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch_fl import _C
from torch_fl.flagos._history import memory_snapshot
from torch_fl.flagos._utils import DeviceLike, _checked_index


class MemPool:
    """Memory of the current device that other allocations never share. It is given back when the pool and all tensors
    in it are gone.

    Args:
        allocator: an allocator of the user's own; not offered.
        use_on_oom: whether other allocations may use the pool as a last resort; not offered.
        no_split: whether segments stay whole; not offered.

    Raises:
        RuntimeError: there is no device.
        NotImplementedError: one of the arguments was given.
    """

    def __init__(self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False):
        for name, value in (("allocator", allocator), ("use_on_oom", use_on_oom), ("no_split", no_split)):
            if value:
                raise NotImplementedError(f"torch.flagos.MemPool: {name} is not offered")
        self._device = _checked_index(None, "MemPool")
        self._id = _C._pool_id()
        _C._retain_pool(self._device, self._id)
        # Not at the end of the process: then everything goes, and nothing should be asked of the device any more.
        weakref.finalize(self, _release, self._device, self._id).atexit = False

    @property
    def id(self) -> tuple[int, int]:
        """Two numbers that name the pool in snapshots (`segment_pool_id`)."""
        return self._id

    @property
    def device(self) -> int:
        """Index of the device it was made on."""
        return self._device

    def use_count(self) -> int:
        """How many owners keep the pool's memory."""
        return _C._pool_use_count(self._device, self._id)

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """The pool's segments as `torch.flagos.memory_snapshot` gives them."""
        return memory_snapshot(self._id, include_traces)


@contextmanager
def use_mem_pool(pool: MemPool, device: DeviceLike = None) -> Iterator[None]:
    """Lets allocations of the calling thread come from a pool inside the block.

    Args:
        pool: the pool.
        device: whose allocations, the current device's for None.

    Raises:
        RuntimeError: there is no such device.
    """
    index = _checked_index(device, "use_mem_pool")
    _C._begin_allocate_to_pool(index, pool.id)
    try:
        yield
    finally:
        _C._end_allocate_to_pool(index, pool.id)


def _release(device: int, pool: tuple[int, int]) -> None:
    if not _C._is_in_bad_fork():
        _C._release_pool(device, pool)
        _C._empty_cache(pool)
