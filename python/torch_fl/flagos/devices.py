# SPDX-License-Identifier: Apache-2.0
"""Devices: how many, which is current, what they are. No function here creates a context.

A device gets its context (`is_initialized`) when memory or a stream is first made on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from torch_fl import _C
from torch_fl.flagos._utils import DeviceLike, _checked_index, _get_device_index, _require_device

_init_called = False


def is_available() -> bool:
    """Whether there is a flagos device. Never raises and creates no context."""
    return _C._device_count() > 0


def device_count() -> int:
    """Number of flagos devices, 0 if there is none. Never raises and creates no context."""
    return _C._device_count()


def is_initialized() -> bool:
    """Whether this process uses a device: after `init()` or the first tensor or stream, and not in a forked child of
    such a process. Queries leave it False."""
    if _C._is_in_bad_fork():
        return False
    return _init_called or any(_C._has_context(index) for index in range(_C._device_count()))


def init() -> None:
    """Makes sure that a device can be used. Needed by nobody, since the first use does the same.

    Raises:
        RuntimeError: there is no device (says why), or this is a forked child of a process that used one.
    """
    global _init_called
    _lazy_init()
    _init_called = True


def _lazy_init() -> None:
    """Raises if no device can be used. torch calls it before the first tensor, but also before mere questions of
    `torch.accelerator`, so it changes nothing."""
    if _C._is_in_bad_fork():
        raise RuntimeError(
            "Cannot re-initialize flagos in forked subprocess. To use flagos with multiprocessing, "
            "you must use the 'spawn' start method"
        )
    _require_device("init")


def _is_in_bad_fork() -> bool:
    """Whether this is a forked child of a process that had used a device."""
    return _C._is_in_bad_fork()


def current_device() -> int:
    """Index of the calling thread's current device.

    Raises:
        RuntimeError: there is no device; says why.
    """
    _require_device("current_device")
    return _C._current_device()


def set_device(device: DeviceLike) -> None:
    """Makes a device the calling thread's current one. A negative index does nothing.

    Raises:
        RuntimeError: there is no such device.
        ValueError: a device of another kind, or one without an index.
    """
    index = _get_device_index(device)
    if index >= 0:
        _C._set_device(_checked_index(index, "set_device"))


def exchange_device(device: int) -> int:
    """Makes a device current and returns the previous one. A negative index does nothing and returns -1."""
    if device < 0:
        return -1
    return _C._exchange_device(_checked_index(device, "exchange_device"))


def maybe_exchange_device(device: int) -> int:
    """As `exchange_device`; the difference that torch makes, not creating a context, is always kept here."""
    return exchange_device(device)


_exchange_device = exchange_device
_maybe_exchange_device = maybe_exchange_device


class device:
    """Context manager that makes a device current inside the block.

    Args:
        device: `torch.device`, index or string; a negative index changes nothing, None means the current device.
    """

    def __init__(self, device: Any):
        self.idx = _get_device_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = exchange_device(self.idx)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.idx = maybe_exchange_device(self.prev_idx)


class device_of(device):
    """Context manager that makes the device of a tensor or storage current; does nothing for other devices'."""

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage):
        super().__init__(obj.get_device() if obj.device.type == "flagos" else -1)


def synchronize(device: DeviceLike = None) -> None:
    """Waits until all work on all streams of a device has finished.

    Raises:
        RuntimeError: there is no such device, or the device reported an error.
    """
    _C._synchronize(_checked_index(device, "synchronize"))


@dataclass(frozen=True)
class DeviceProperties:
    """What a driver says of its device. Numbers it does not report are 0, text is empty."""

    name: str
    arch: str  # what a compiler calls it, such as "sm_90"
    total_memory: int  # bytes
    major: int
    minor: int
    multi_processor_count: int
    warp_size: int
    pci_bus_id: str


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Properties of a device. Creates no context and leaves the current device as it is.

    Raises:
        AssertionError: there is no device of this index.
        RuntimeError: there is no device at all; says why.
    """
    facts = _C._device_properties(_checked_index(device, "get_device_properties", AssertionError))
    return DeviceProperties(
        name=facts["name"] or "",
        arch=facts["arch"] or "",
        total_memory=facts["total_memory"] or 0,
        major=facts["major"] or 0,
        minor=facts["minor"] or 0,
        multi_processor_count=facts["multi_processor_count"] or 0,
        warp_size=facts["warp_size"] or 0,
        pci_bus_id=facts["pci_bus_id"] or "",
    )


def get_device_name(device: DeviceLike = None) -> str:
    """Marketing name of a device. Errors as `get_device_properties`."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """(major, minor) of a device, (0, 0) when its driver reports none. Errors as `get_device_properties`."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """Whether one device can address the memory of another. False also when the driver cannot tell; copies between
    devices work in any case, if need be through the host.

    Raises:
        AssertionError: there is no device of one of the indices.
        RuntimeError: there is no device at all, or the driver reported an error.
    """
    index = _checked_index(device, "can_device_access_peer", AssertionError)
    peer = _checked_index(peer_device, "can_device_access_peer", AssertionError)
    return _C._can_access_peer(index, peer)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 tensors work, which every route so far offers: True if there is a device."""
    return is_available()


def is_current_stream_capturing() -> bool:
    """Whether the current stream records a graph: never, since this version offers no graphs."""
    return False


def ipc_collect() -> None:
    """Frees memory that other processes no longer use: there is none, since device memory is not shared yet."""
