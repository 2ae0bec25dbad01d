# SPDX-License-Identifier: Apache-2.0
"""Memory of the devices and page-locked host memory, under torch's usual names. All sizes are bytes.

Nothing here creates a context, except `caching_allocator_alloc`. Without a usable device statistics are empty and
resets do nothing, as everywhere in torch.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import Any

import torch

from torch_fl import _C
from torch_fl.flagos._history import (  # noqa: F401 - torch's names for them
    _dump_snapshot,
    _record_memory_history,
    _set_allocator_settings,
    _snapshot,
    memory_snapshot,
)
from torch_fl.flagos._pools import MemPool, use_mem_pool
from torch_fl.flagos._summary import summary_text
from torch_fl.flagos._utils import DeviceLike, _checked_index

__all__ = [
    "MemPool",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "empty_cache",
    "empty_host_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "list_gpu_processes",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "use_mem_pool",
]

# The original plugin's flat names, which its users read, and where torch's names keep the number.
_ORIGINAL_KEYS = {
    "allocated_bytes": "allocated_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "num_alloc_calls": "allocation.all.allocated",
    "num_free_calls": "allocation.all.freed",
    "num_device_malloc": "num_device_alloc",
    "num_device_free": "num_device_free",
    "num_alloc_retries": "num_alloc_retries",
}


# -- statistics -------------------------------------------------------------------------------------------------------


def memory_stats(device: DeviceLike = None) -> OrderedDict[str, int]:
    """Numbers of a device's allocator, sorted by name; empty when there is no usable device.

    Keys are those of torch's own GPU module: `QUANTITY.POOL.METRIC` with the quantities `allocation`, `segment`,
    `active`, `inactive_split` (counts), `allocated_bytes`, `reserved_bytes`, `active_bytes`, `inactive_split_bytes`,
    `requested_bytes`; the pools `all`, `small_pool` (requests up to 1 MiB), `large_pool`; the metrics `current`,
    `peak`, `allocated`, `freed`. Further `oversize_allocations.METRIC`, `oversize_segments.METRIC`,
    `num_alloc_retries`, `num_ooms`, `num_sync_all_streams`, `num_device_alloc`, `num_device_free`, `max_split_size`.
    Beside them stand the original plugin's nine flat names (`allocated_bytes`, `peak_allocated_bytes`, ...).

    Raises:
        RuntimeError: there is no device of this index.
    """
    if not _usable():
        return OrderedDict()
    stats = _C._memory_stats(_checked_index(device, "memory_stats"))
    stats.update({name: stats[key] for name, key in _ORIGINAL_KEYS.items()})
    return OrderedDict(sorted(stats.items()))


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """The same numbers as dicts in dicts: `stats["allocated_bytes"]["all"]["current"]`. Errors as `memory_stats`."""
    if not _usable():
        return {}
    return _nested(_C._memory_stats(_checked_index(device, "memory_stats_as_nested_dict")))


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes held by live tensors of a device."""
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Most bytes held by tensors at once since the start or `reset_peak_memory_stats`."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes held from the driver, live and cached."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Most bytes held from the driver at once since the start or `reset_peak_memory_stats`."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def memory_cached(device: DeviceLike = None) -> int:
    """Old name of `memory_reserved`."""
    _warn_old_name("memory_cached", "memory_reserved")
    return memory_reserved(device)


def max_memory_cached(device: DeviceLike = None) -> int:
    """Old name of `max_memory_reserved`."""
    _warn_old_name("max_memory_cached", "max_memory_reserved")
    return max_memory_reserved(device)


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Lets the peaks start again from the present values. Live numbers stay as they are."""
    if _usable():
        _C._reset_peak_stats(_checked_index(device, "reset_peak_memory_stats"))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Sets the counts since the start (`allocated`, `freed`, `num_*`) to zero."""
    if _usable():
        _C._reset_accumulated_stats(_checked_index(device, "reset_accumulated_memory_stats"))


def reset_max_memory_allocated(device: DeviceLike = None) -> None:
    """Old name of `reset_peak_memory_stats`; resets all peaks."""
    _warn_old_name("reset_max_memory_allocated", "reset_peak_memory_stats")
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: DeviceLike = None) -> None:
    """Old name of `reset_peak_memory_stats`; resets all peaks."""
    _warn_old_name("reset_max_memory_cached", "reset_peak_memory_stats")
    reset_peak_memory_stats(device)


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """Text table of a device's memory numbers.

    Args:
        device: the device, the current one for None.
        abbreviated: leaves out the rows of the small and the large pool.

    Raises:
        RuntimeError: there is no such device.
    """
    index = _checked_index(device, "memory_summary")
    return summary_text(memory_stats(index), index, abbreviated)


# -- the device as a whole --------------------------------------------------------------------------------------------


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """(free, total) bytes of a device, for all processes.

    Raises:
        RuntimeError: there is no such device.
    """
    return _C._memory_info(_checked_index(device, "mem_get_info"))


def empty_cache() -> None:
    """Gives cached blocks of all devices back to the driver. Live tensors stay."""
    if _usable():
        _C._empty_cache()


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limits what this process may hold of a device's memory. Beyond it an allocation fails as if the device were full.

    Args:
        fraction: of the total memory, 0 < fraction <= 1.
        device: the device, the current one for None.

    Raises:
        TypeError: the fraction is not a float.
        ValueError: it is out of range.
        RuntimeError: there is no such device.
    """
    index = _checked_index(device, "set_per_process_memory_fraction")
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 < fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0 < fraction <= 1")
    _C._set_memory_fraction(fraction, index)


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """The limit set by `set_per_process_memory_fraction`, 1.0 if none.

    Raises:
        RuntimeError: there is no such device.
    """
    return _C._get_memory_fraction(_checked_index(device, "get_per_process_memory_fraction"))


def get_allocator_backend() -> str:
    """Which allocator serves the devices: always "native", torch's word for a caching allocator in the process."""
    return "native"


def list_gpu_processes(device: DeviceLike = None) -> str:
    """Not offered.

    Raises:
        NotImplementedError: drivers do not report the processes that use a device.
    """
    raise NotImplementedError(
        "torch.flagos.list_gpu_processes: drivers do not report the processes of a device; use the vendor's own tool"
    )


# -- memory without a tensor ------------------------------------------------------------------------------------------


def caching_allocator_alloc(size: int, device: DeviceLike = None, stream: torch.Stream | int | None = None) -> int:
    """Device address of new memory, for other libraries. `caching_allocator_delete` frees it.

    Args:
        size: bytes.
        device: the device, the current one for None.
        stream: where the memory will be used first: a stream, the vendor's handle as a number (0: the default stream),
            or the current stream for None.

    Raises:
        RuntimeError: there is no such device.
        TypeError: `stream` is something else.
        NotImplementedError: a number was given and the driver cannot wrap streams.
        torch.OutOfMemoryError: there is not enough memory.
    """
    index = _checked_index(device, "caching_allocator_alloc")
    if stream is None:
        stream_id = torch._C._accelerator_getStream(index).stream_id
    elif isinstance(stream, torch.Stream):
        stream_id = stream.stream_id
    elif isinstance(stream, int):
        stream_id = _C._external_stream(stream, index) if stream else 0
    else:
        raise TypeError(f"stream is a torch.flagos.Stream, a number or None, but got: {type(stream).__name__}")
    return _C._allocate_raw(size, index, stream_id)


def caching_allocator_delete(mem_ptr: int) -> None:
    """Frees what `caching_allocator_alloc` gave.

    Raises:
        RuntimeError: the address is not the start of such memory.
    """
    _C._free_raw(mem_ptr)


# -- page-locked host memory ------------------------------------------------------------------------------------------


def host_memory_stats() -> OrderedDict[str, int]:
    """Numbers of the allocator of page-locked host memory, sorted by name; empty when there is no usable device.

    `allocations.METRIC` and `allocated_bytes.METRIC` are what it holds from the driver, `active_requests.METRIC` and
    `active_bytes.METRIC` what callers hold of that; the metrics are `current`, `peak`, `allocated`, `freed`.
    `num_host_alloc` and `num_host_free` count calls of the driver, `host_alloc_time.total` and `host_free_time.total`
    are the microseconds they took.
    """
    if not _usable():
        return OrderedDict()
    return OrderedDict(sorted(_C._host_memory_stats().items()))


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """The numbers of `host_memory_stats` as dicts in dicts."""
    return _nested(host_memory_stats())


def reset_peak_host_memory_stats() -> None:
    """As `reset_peak_memory_stats`, for page-locked host memory."""
    if _usable():
        _C._host_reset_peak_stats()


def reset_accumulated_host_memory_stats() -> None:
    """As `reset_accumulated_memory_stats`, for page-locked host memory."""
    if _usable():
        _C._host_reset_accumulated_stats()


def empty_host_cache() -> None:
    """Gives cached page-locked memory that no copy uses any more back to the driver."""
    if _usable():
        _C._host_empty_cache()


# -- helpers ----------------------------------------------------------------------------------------------------------


def _usable() -> bool:
    return _C._device_count() > 0 and not _C._is_in_bad_fork()


def _nested(flat: dict[str, int]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        place = result
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return result


def _warn_old_name(old: str, new: str) -> None:
    remark = ", which resets all peak stats" if new.startswith("reset") else ""
    warnings.warn(f"torch.flagos.{old} now calls torch.flagos.{new}{remark}.", FutureWarning, stacklevel=3)
