# SPDX-License-Identifier: Apache-2.0
"""Streams and events: torch's device-generic classes with the usual method names."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from torch_fl import _C
from torch_fl.flagos._utils import DeviceLike, _checked_index, _require_device
from torch_fl.flagos.devices import exchange_device

_DEVICE_TYPE = int(torch._C._autograd.DeviceType.PrivateUse1)
_DEFAULT_STREAM_ID = 0


class Stream(torch.Stream):
    """A queue of work of one device; work in one stream runs in order.

    Args:
        device: the device; None or a negative index means the current one.
        priority: lower is more urgent. A number outside `priority_range()` counts as its nearest end.

    Raises:
        RuntimeError: there is no such device.
    """

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **kwargs: Any) -> Stream:
        """Makes a stream, or with `stream_id`, `device_index` and `device_type` names an existing one."""
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        if isinstance(device, int) and device < 0:
            device = None
        return super().__new__(cls, torch.device("flagos", _checked_index(device, "Stream")), priority=priority)

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Records an event, a new one for None, behind the work queued so far, and returns it."""
        if event is None:
            event = torch.Event(self.device)
        event.record(self)
        return event

    def wait_event(self, event: torch.Event) -> None:
        """Makes work queued from now on wait for an event. Returns at once."""
        event.wait(self)

    def wait_stream(self, other: torch.Stream) -> None:
        """Makes work queued from now on wait for all that is queued in another stream. Returns at once."""
        self.wait_event(other.record_event())

    @property
    def priority(self) -> int:
        """The priority it runs with."""
        return _C._stream_priority(self.stream_id, self.device_index)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """(least, greatest) priority of the current device; the greatest is the lowest number. (0, 0) where the driver
        has no priorities.

        Raises:
            RuntimeError: there is no device.
        """
        return _C._stream_priority_range(_checked_index(None, "Stream.priority_range"))

    @property
    def native_handle(self) -> int:
        """The vendor's handle as a number, 0 if the driver has none for it."""
        return _C._stream_native(self.stream_id, self.device_index)

    def __repr__(self) -> str:
        return f"<torch.flagos.Stream device={self.device} stream_id={self.stream_id}>"


class ExternalStream(Stream):
    """A stream that another library made. Its owner keeps it alive while this object is used.

    Args:
        stream_ptr: the vendor's handle as a number.
        device: the device it was made on, the current one for None.

    Raises:
        RuntimeError: there is no such device.
    """

    def __new__(cls, stream_ptr: int, device: DeviceLike = None, **kwargs: Any) -> ExternalStream:
        """Wraps the vendor's handle."""
        index = _checked_index(device, "ExternalStream")
        stream_id = _C._external_stream(stream_ptr, index)
        return torch.Stream.__new__(cls, stream_id=stream_id, device_index=index, device_type=_DEVICE_TYPE)


def get_stream_from_external(data_ptr: int, device: DeviceLike = None) -> ExternalStream:
    """A stream that another library made, as `ExternalStream`."""
    return ExternalStream(data_ptr, device)


class _EventType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "flagos"

    def __call__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> torch.Event:
        _require_device("Event")
        if interprocess or external:
            raise NotImplementedError("torch.flagos.Event: interprocess and external events are not offered")
        return torch.Event(torch.device("flagos"), enable_timing=enable_timing, blocking=blocking)


class Event(metaclass=_EventType):
    """A mark in a stream that can be waited for, asked about and timed.

    Calling it makes a `torch.Event`, not a subclass: torch's own streams and events refuse to work with subclasses.
    It has the usual methods: `record`, `wait`, `query`, `synchronize`, `elapsed_time` (milliseconds).

    Args:
        enable_timing: whether `elapsed_time` will be asked for.
        blocking: taken for compatibility: torch does not pass it on to backends like this one.
        interprocess, external: not offered; True raises NotImplementedError.

    Raises:
        RuntimeError: there is no device.
    """


def current_stream(device: DeviceLike = None) -> Stream:
    """The calling thread's current stream of a device.

    Raises:
        RuntimeError: there is no such device.
    """
    return _wrap(torch._C._accelerator_getStream(_checked_index(device, "current_stream")))


def default_stream(device: DeviceLike = None) -> Stream:
    """The stream that work of a device goes to until another one is set.

    Raises:
        RuntimeError: there is no such device.
    """
    index = _checked_index(device, "default_stream")
    return Stream(stream_id=_DEFAULT_STREAM_ID, device_index=index, device_type=_DEVICE_TYPE)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes a stream, and its device, the calling thread's current one. None does nothing."""
    if stream is not None:
        exchange_device(stream.device_index)
        torch._C._accelerator_setStream(stream)


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    set_stream(Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))


class StreamContext:
    """Context manager that makes a stream, and its device, current inside the block. None changes nothing."""

    def __init__(self, stream: torch.Stream | None):
        self.stream = stream
        self._previous: list[torch.Stream] = []

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            # The device that was current comes last, so that restoring in order ends on it.
            self._previous = [current_stream(self.stream.device_index), current_stream()]
            set_stream(self.stream)
        return self.stream

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for previous in self._previous:
            set_stream(previous)
        self._previous = []


def stream(stream: torch.Stream | None) -> StreamContext:
    """`with torch.flagos.stream(s):` queues the block's work in `s`."""
    return StreamContext(stream)


def _wrap(stream: torch.Stream) -> Stream:
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=_DEVICE_TYPE)
