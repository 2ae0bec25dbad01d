# SPDX-License-Identifier: Apache-2.0
"""`torch.flagos` when another backend owns the devices: what that backend's own module offers is forwarded to it.

Memory numbers, snapshots, history, limits and pools exist only in that module; devices, streams and random numbers are
its own under another type. A flagos device in an argument becomes the backend's; results are returned as they are.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from torch_fl import _C
from torch_fl.flagos import devices, memory, random, streams

# Names of the backend's module, by the module of ours that has them (or will have them).
_DEVICES = (
    "can_device_access_peer device_count get_arch_list get_device_capability get_device_name get_device_properties "
    "init is_bf16_supported is_current_stream_capturing is_initialized ipc_collect power_draw clock_rate temperature "
    "utilization memory_usage current_blas_handle _is_in_bad_fork _lazy_init"
).split()
_MEMORY = (
    *memory.__all__,
    "caching_allocator_enable",
    "_dump_snapshot",
    "_record_memory_history",
    "_save_memory_usage",
    "_save_segment_usage",
    "_set_allocator_settings",
    "_snapshot",
)
_RANDOM = (
    "get_rng_state get_rng_state_all initial_seed manual_seed manual_seed_all seed seed_all set_rng_state "
    "set_rng_state_all"
).split()
_GRAPHS = "CUDAGraph graph graph_pool_handle".split()  # vendor-word: names of torch's module


def forward(flagos: ModuleType, backend: ModuleType) -> None:
    """Replaces the functions of `torch.flagos` (and adds those it lacks) by ones that call `backend`'s."""
    for ours, theirs, names in (
        (devices, backend, _DEVICES),
        (memory, backend.memory, _MEMORY),
        (random, backend.random, _RANDOM),
        (flagos, backend, _GRAPHS),
    ):
        for name in names:
            source = getattr(theirs, name, None) or getattr(backend, name, None)
            if source is not None:  # some names came with later versions of torch
                _publish(flagos, ours, name, source if isinstance(source, type) else _call(source, name))
    _publish(flagos, memory, "memory_stats", _memory_stats(backend))
    _publish(flagos, memory, "empty_host_cache", torch._C._host_emptyCache)
    _publish(flagos, devices, "is_available", lambda: devices.device_count() > 0)
    _publish(flagos, streams, "ExternalStream", _external_stream(backend))
    kind = streams.Stream
    kind.native_handle = property(lambda stream: _native(stream).cuda_stream)  # type: ignore  # vendor-word: torch's
    kind.priority = property(lambda stream: _native(stream).priority)  # type: ignore[assignment,method-assign]
    kind.priority_range = staticmethod(lambda: backend.Stream.priority_range())  # type: ignore[method-assign]


def _publish(flagos: ModuleType, ours: ModuleType, name: str, value: Any) -> None:
    setattr(ours, name, value)
    if hasattr(flagos, name) or not name.startswith("_"):
        setattr(flagos, name, value)
    if name not in flagos.__all__ and not name.startswith("_"):
        flagos.__all__.append(name)


def _call(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def forwarded(*args: Any, **kwargs: Any) -> Any:
        return function(*map(_native, args), **{key: _native(value) for key, value in kwargs.items()})

    forwarded.__module__ = "torch.flagos"
    forwarded.__qualname__ = name
    return forwarded


def _native(value: Any) -> Any:
    """A flagos device (by object or name) or stream as the backend's; anything else as it is."""
    if isinstance(value, torch.device) and value.type == "flagos":
        return torch.device(_C._delegate(), _C._current_device() if value.index is None else value.index)
    if isinstance(value, str) and value.split(":")[0] == "flagos":
        return _native(torch.device(value))
    if isinstance(value, torch.Stream) and value.device.type == "flagos":
        kind = int(getattr(torch._C._autograd.DeviceType, _C._delegate().upper()))
        make = getattr(torch, _C._delegate()).Stream
        return make(stream_id=value.stream_id, device_index=value.device_index, device_type=kind)
    return value


def _memory_stats(backend: ModuleType) -> Callable[..., OrderedDict[str, Any]]:
    def memory_stats(device: Any = None) -> OrderedDict[str, Any]:
        """The backend's numbers, native tensors included, and the original plugin's nine flat names."""
        stats = backend.memory_stats(_native(device))
        if stats:
            stats.update({name: stats.get(key, 0) for name, key in memory._ORIGINAL_KEYS.items()})
        return OrderedDict(sorted(stats.items()))

    return memory_stats


def _external_stream(backend: ModuleType) -> type[streams.Stream]:
    class ExternalStream(streams.Stream):
        """A stream that another library made; its owner keeps it alive while this object is used."""

        def __new__(cls, stream_ptr: int, device: Any = None, **kwargs: Any) -> ExternalStream:
            """Wraps the vendor's handle."""
            native = backend.ExternalStream(stream_ptr, _native(device))
            place = {"device_index": native.device_index, "device_type": streams._DEVICE_TYPE}
            return torch.Stream.__new__(cls, stream_id=native.stream_id, **place)

    return ExternalStream
