# SPDX-License-Identifier: Apache-2.0
"""Memory of the devices, under torch's usual names. All sizes are bytes. Nothing here creates a context."""

from __future__ import annotations

import warnings
from collections import OrderedDict

from torch_fl import _C
from torch_fl._text import size_text
from torch_fl.flagos._utils import DeviceLike, _checked_index

# The original plugin's flat names, which its users read.
_ORIGINAL_KEYS = (
    "allocated_bytes",
    "reserved_bytes",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "num_alloc_calls",
    "num_free_calls",
    "num_device_malloc",
    "num_device_free",
    "num_alloc_retries",
)


def memory_stats(device: DeviceLike = None) -> OrderedDict[str, int]:
    """Numbers of a device's allocator, sorted by name; empty when there is no usable device.

    Keys are those of torch's own GPU module, for the pool class `all` (`allocated_bytes.all.current`, ...): the
    allocator keeps no separate small and large pools, and a number it does not keep has no key. Beside them stand
    the original plugin's nine flat names (`allocated_bytes`, `peak_allocated_bytes`, ...).

    Raises:
        RuntimeError: there is no device of this index.
    """
    if not _usable():
        return OrderedDict()
    raw = _C._memory_stats(_checked_index(device, "memory_stats"))
    stats = {key: raw[key] for key in _ORIGINAL_KEYS}
    stats["num_ooms"] = raw["num_ooms"]
    stats["num_device_alloc"] = raw["num_device_malloc"]
    # The pool hands out what callers asked for, so the three views of live memory are one.
    for name in ("allocated_bytes", "active_bytes", "requested_bytes"):
        stats[f"{name}.all.current"] = raw["allocated_bytes"]
        stats[f"{name}.all.peak"] = raw["peak_allocated_bytes"]
        stats[f"{name}.all.allocated"] = raw["total_allocated_bytes"]
        stats[f"{name}.all.freed"] = raw["total_freed_bytes"]
    stats["reserved_bytes.all.current"] = raw["reserved_bytes"]
    stats["reserved_bytes.all.peak"] = raw["peak_reserved_bytes"]
    for name in ("allocation", "active"):
        stats[f"{name}.all.current"] = raw["active_blocks"]
        stats[f"{name}.all.allocated"] = raw["num_alloc_calls"]
        stats[f"{name}.all.freed"] = raw["num_free_calls"]
    stats["segment.all.allocated"] = raw["num_device_malloc"]
    stats["segment.all.freed"] = raw["num_device_free"]
    for name in ("inactive_split", "inactive_split_bytes"):  # blocks are never split
        for metric in ("current", "peak", "allocated", "freed"):
            stats[f"{name}.all.{metric}"] = 0
    return OrderedDict(sorted(stats.items()))


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
    _warn_old_name("reset_max_memory_allocated")
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: DeviceLike = None) -> None:
    """Old name of `reset_peak_memory_stats`; resets all peaks."""
    _warn_old_name("reset_max_memory_cached")
    reset_peak_memory_stats(device)


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """Text table of a device's memory numbers.

    Args:
        device: the device, the current one for None.
        abbreviated: leaves the event counts out.

    Raises:
        RuntimeError: there is no such device.
    """
    index = _checked_index(device, "memory_summary")
    stats = memory_stats(index)
    metrics = ("current", "peak", "allocated", "freed")
    lines = [f"flagos memory summary, device {index}", f"{'':<20}" + "".join(f"{name:>14}" for name in metrics)]
    for key, title, form in (
        ("allocated_bytes", "Allocated memory", size_text),
        ("reserved_bytes", "Reserved memory", size_text),
        ("allocation", "Blocks", str),
        ("segment", "Driver allocations", str),
    ):
        values = [stats.get(f"{key}.all.{metric}") for metric in metrics]
        lines.append(f"{title:<20}" + "".join(f"{'-' if value is None else form(value):>14}" for value in values))
    if not abbreviated:
        lines.append(f"out of memory errors: {stats['num_ooms']}, retries before them: {stats['num_alloc_retries']}")
    return "\n".join(lines) + "\n"


def _usable() -> bool:
    # As everywhere in torch, statistics of a process that cannot have any are empty rather than an error.
    return _C._device_count() > 0 and not _C._is_in_bad_fork()


def _warn_old_name(name: str) -> None:
    warnings.warn(
        f"torch.flagos.{name} now calls torch.flagos.reset_peak_memory_stats, which resets all peak stats.",
        FutureWarning,
        stacklevel=3,
    )
