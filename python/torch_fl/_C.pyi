# SPDX-License-Identifier: Apache-2.0
"""The compiled module: thin pybind11 bindings, no logic. Everything public lives in the Python modules beside it."""

from typing import Any

import torch

# -- initialisation ---------------------------------------------------------------------------------------------------
def _register(delegate: str = "") -> None:
    """Registers guard, hooks, allocator, generator and routes with torch under PrivateUse1. Creates no context.

    delegate: torch's name for the device type whose backend owns the devices; "" for our own runtime."""

def _delegate() -> str:
    """What `_register` was given."""

def _to_native(tensor: torch.Tensor) -> torch.Tensor: ...
def _from_native(tensor: torch.Tensor) -> torch.Tensor: ...
def _torch_version_built() -> str:
    """The torch version this module was compiled for, e.g. "2.11.0+cu130"."""

def _routed_ops() -> list[str]:
    """Names ("aten::add.Tensor") of every overload that has a flagos route, sorted."""

def _rescan_routes() -> int:
    """Routes the operators that were registered since the last scan; returns how many were added."""

# -- driver -----------------------------------------------------------------------------------------------------------
def _driver_info() -> dict[str, Any]:
    """name, path, platform, implementation, capabilities, missing_entries, layers (lists of str). Loads the driver."""

def _available_drivers() -> list[str]: ...
def _driver_folder() -> str: ...
def _hardware_detected() -> bool: ...

# -- devices ----------------------------------------------------------------------------------------------------------
def _device_count() -> int: ...
def _unavailable_reason() -> str: ...
def _current_device() -> int: ...
def _set_device(device: int) -> None: ...
def _exchange_device(device: int) -> int: ...
def _has_context(device: int) -> bool: ...
def _is_in_bad_fork() -> bool: ...
def _device_properties(device: int) -> dict[str, Any]:
    """name, arch, total_memory, major, minor, multi_processor_count, warp_size, pci_bus_id; unknown fields are None."""

def _memory_info(device: int) -> tuple[int, int]:
    """(free, total) bytes."""

def _synchronize(device: int) -> None: ...
def _can_access_peer(device: int, peer: int) -> bool:
    """False also when the driver cannot say: copies between the two go through the host then."""

def _host_view() -> bool: ...

# -- memory -----------------------------------------------------------------------------------------------------------
def _memory_stats(device: int) -> dict[str, int]:
    """torch's names: "allocated_bytes.all.current", ..., "num_ooms". Zeros, and still no context, before first use."""

def _reset_peak_stats(device: int) -> None: ...
def _reset_accumulated_stats(device: int) -> None: ...
def _empty_cache(pool: tuple[int, int] | None = None) -> None:
    """Of one private pool, or of all pools that nobody keeps; on every device."""

def _find_allocation(pointer: int) -> dict[str, Any] | None:
    """base, size, device, number, op of the live block that holds a device address."""

def _allocate_raw(size: int, device: int, stream_id: int) -> int:
    """Device address of memory without a tensor, as if allocated with that stream current."""

def _free_raw(pointer: int) -> None:
    """Takes what `_allocate_raw` gave; raises for anything that is not the start of a live block."""

def _set_memory_fraction(fraction: float, device: int) -> None: ...
def _get_memory_fraction(device: int) -> float: ...
def _set_allocator_settings(settings: str) -> None:
    """PYTORCH_ALLOC_CONF syntax, for torch's own setting and this allocator."""

def _allocator_settings() -> dict[str, Any]:
    """runtime::AllocatorConfig by field."""

def _record_memory_history(max_entries: int, context: str | None, stacks: str) -> None:
    """max_entries 0 stops; context None, "state", "alloc" or "all"; stacks "python" or "all" (C++ frames too)."""

def _memory_snapshot(pool: tuple[int, int] | None = None) -> dict[str, Any]:
    """segments and device_traces as torch's GPU module gives them, stack frames resolved."""

def _pool_id() -> tuple[int, int]:
    """A new id, unique in the process."""

def _retain_pool(device: int, pool: tuple[int, int]) -> None: ...
def _release_pool(device: int, pool: tuple[int, int]) -> None: ...
def _pool_use_count(device: int, pool: tuple[int, int]) -> int: ...
def _begin_allocate_to_pool(device: int, pool: tuple[int, int]) -> None:
    """For allocations of the calling thread, whichever stream is current."""

def _end_allocate_to_pool(device: int, pool: tuple[int, int]) -> None: ...
def _host_memory_stats() -> dict[str, int]: ...
def _host_empty_cache() -> None: ...
def _host_reset_peak_stats() -> None: ...
def _host_reset_accumulated_stats() -> None: ...

# -- layers (FLAGOS_DRIVER_LAYERS) -------------------------------------------------------------------------------------
def _known_layers() -> list[str]: ...
def _arm_fault(entry: str, nth: int, status: str) -> None:
    """layer fault: the nth call of a table entry from now fails; nth 0 disarms."""

def _disarm_faults() -> None: ...
def _faults_fired() -> int: ...
def _take_call_counts() -> dict[str, int]: ...
def _live_objects() -> list[dict[str, Any]]:
    """layer leak: kind, handle, size, device, number."""

def _validate_counts() -> dict[str, int]: ...

# -- generators -------------------------------------------------------------------------------------------------------
def _default_generator(device: int) -> torch.Generator: ...

# -- streams (torch.Stream and torch.Event do the rest) ---------------------------------------------------------------
def _stream_native(stream_id: int, device: int) -> int: ...
def _stream_priority(stream_id: int, device: int) -> int: ...
def _stream_priority_range(device: int) -> tuple[int, int]:
    """(least, greatest); (0, 0) for a driver without priorities. Creates no context."""

def _external_stream(native: int, device: int) -> int:
    """Stream id of a wrapped vendor stream."""

# -- routing ----------------------------------------------------------------------------------------------------------
def _counter_rows() -> list[tuple[str, str, int, int, int, int]]:
    """(op, route, calls, host_ns, copied_bytes, copied_results)."""

def _reset_counters() -> None: ...
def _runtime_counters() -> dict[str, int]: ...
def _set_timing(on: bool) -> None: ...
def _get_fallback_policy() -> str: ...
def _set_fallback_policy(policy: str) -> None: ...
def _get_forced_route() -> str:
    """ "" (none), "alias" or "cpu"."""

def _set_forced_route(route: str) -> None: ...
def _keep_on_cpu(op: str, outputs: list[int]) -> None:
    """The outputs with these positions stay CPU tensors when `op` ("ns::name.overload") is routed."""
