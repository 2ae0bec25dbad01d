# SPDX-License-Identifier: Apache-2.0
"""The compiled module: thin pybind11 bindings, no logic. Everything public lives in the Python modules beside it."""

from typing import Any

import torch

# -- initialisation ---------------------------------------------------------------------------------------------------
def _register() -> None:
    """Registers guard, hooks, allocator, generator and routes with torch under PrivateUse1. Creates no context."""

def _torch_version_built() -> str:
    """The torch version this module was compiled for, e.g. "2.11.0+cu130"."""

def _routed_ops() -> list[str]:
    """Names ("aten::add.Tensor") of every overload that has a flagos route, sorted."""

def _rescan_routes() -> int:
    """Routes the operators that were registered since the last scan; returns how many were added."""

# -- driver -----------------------------------------------------------------------------------------------------------
def _driver_info() -> dict[str, Any]:
    """name, path, platform, implementation, capabilities (list[str]), missing_entries (list[str]). Loads the driver."""

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
def _host_view() -> bool: ...

# -- memory -----------------------------------------------------------------------------------------------------------
def _memory_stats(device: int) -> dict[str, int]:
    """Fields of runtime::MemoryStats under their C++ names."""

def _reset_peak_stats(device: int) -> None: ...
def _reset_accumulated_stats(device: int) -> None: ...
def _empty_cache() -> None: ...
def _find_allocation(pointer: int) -> dict[str, Any] | None:
    """base, size, device, number, op of the live block that holds a device address."""

# -- generators -------------------------------------------------------------------------------------------------------
def _default_generator(device: int) -> torch.Generator: ...

# -- streams (torch.Stream and torch.Event do the rest) ---------------------------------------------------------------
def _stream_native(stream_id: int, device: int) -> int: ...
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
