# SPDX-License-Identifier: Apache-2.0
"""`torch.nn.parallel.comm` for flagos: what `torch.nn.DataParallel` moves tensors with.

Four of its functions end in C++ that knows one kind of device only. Each gets a front that takes the calls meant for
flagos and hands every other one, arguments unchanged, to torch's function (its `__wrapped__`). A call is meant for
the device kind that its devices or `out` tensors name, else for that of its input tensors, else, bare numbers beside
CPU tensors, for the kind that torch itself takes such numbers for. `reduce_add` and `reduce_add_coalesced` are made
of tensor operators and need nothing. The fronts are in place from registration on: `import torch` has loaded `comm`
already, and its callers look the function up at the very call that needs it. They keep no state; any thread may call
them.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch._utils import (
    _flatten_dense_tensors,
    _flatten_sparse_tensors,
    _get_available_device_type,
    _get_device_index,
    _handle_complex,
    _reorder_tensors_as,
    _take_tensors,
    _unflatten_dense_tensors,
    _unflatten_sparse_tensors,
)
from torch.nn.parallel import comm

from torch_fl import _compat
from torch_fl.flagos._utils import DeviceLike

_NAME = "flagos"
_WHY = "its C++ part knows one kind of device only"
_CPU_INDEX = -1


def apply() -> None:
    """Puts the fronts in place and notes each. May be called again; the second call does nothing."""
    for front in (_front_broadcast, _front_broadcast_coalesced, _front_scatter, _front_gather):
        name = front.__name__.removeprefix("_front_")
        own = getattr(comm, name)
        if not getattr(own, "_takes_flagos", False):
            replacement = functools.wraps(own)(front(own))
            replacement._takes_flagos = True  # type: ignore[attr-defined]
            setattr(comm, name, replacement)
        _compat.record(_compat.Patch(f"torch.nn.parallel.comm.{name}", "2.10 and later", _WHY))


def _front_broadcast(own: Callable[..., Any]) -> Callable[..., Any]:
    def broadcast(
        tensor: torch.Tensor, devices: Iterable[DeviceLike] | None = None, *, out: Sequence[torch.Tensor] | None = None
    ) -> Any:
        devices = _listed(devices)
        if (devices is None) == (out is None) or not _meant_for_flagos(devices or out, [tensor]):
            return own(tensor, devices, out=out)  # both or neither: torch's own error
        tensor = _handle_complex(tensor)
        if devices is not None:
            return _broadcast(tensor, [_get_device_index(device) for device in devices])
        assert out is not None
        return _broadcast_out(tensor, out)

    return broadcast


def _front_broadcast_coalesced(own: Callable[..., Any]) -> Callable[..., Any]:
    def broadcast_coalesced(
        tensors: Iterable[torch.Tensor], devices: Iterable[DeviceLike], buffer_size: int = 10485760
    ) -> Any:
        tensors, devices = list(tensors), list(devices)
        if not _meant_for_flagos(devices, tensors):
            return own(tensors, devices, buffer_size)
        indices = [_get_device_index(device) for device in devices]
        return _broadcast_coalesced([_handle_complex(tensor) for tensor in tensors], indices, buffer_size)

    return broadcast_coalesced


def _front_scatter(own: Callable[..., Any]) -> Callable[..., Any]:
    def scatter(
        tensor: torch.Tensor,
        devices: Iterable[DeviceLike] | None = None,
        chunk_sizes: Iterable[int] | None = None,
        dim: int = 0,
        streams: Sequence[torch.Stream | None] | None = None,
        *,
        out: Sequence[torch.Tensor] | None = None,
    ) -> Any:
        devices = _listed(devices)
        places = out if devices is None else devices
        wrong = (out is None) == (devices is None) or (out is not None and chunk_sizes is not None)
        if wrong or not _meant_for_flagos(places, [tensor]):
            return own(tensor, devices, chunk_sizes, dim, streams, out=out)  # wrong: torch's own error
        tensor = _handle_complex(tensor)
        if devices is not None:
            return _scatter(tensor, [_get_device_index(d) for d in devices], _listed(chunk_sizes), dim, streams)
        assert out is not None
        return _scatter_out(tensor, out, dim, streams)

    return scatter


def _front_gather(own: Callable[..., Any]) -> Callable[..., Any]:
    def gather(
        tensors: Iterable[torch.Tensor],
        dim: int = 0,
        destination: DeviceLike = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        tensors = list(tensors)
        places: list[Any] = [destination] if out is None else [out]
        if (out is not None and destination is not None) or not _meant_for_flagos(tensors, places):
            return own(tensors, dim, destination, out=out)  # both: torch's own error
        tensors = [_handle_complex(tensor) for tensor in tensors]
        if out is not None:
            return _gather_out(tensors, out, dim)
        if destination == _CPU_INDEX:
            warnings.warn(
                "Using -1 to represent CPU tensor is deprecated. Please use a "
                'device object or string instead, e.g., "cpu".',
                FutureWarning,
                stacklevel=2,
            )
        return _gather(tensors, dim, _destination(destination))

    return gather


def _listed(values: Iterable[Any] | None) -> list[Any] | None:
    # Callers may pass an iterator, which has to be looked at and then used.
    return None if values is None else list(values)


def _meant_for_flagos(*groups: Iterable[Any] | None) -> bool:
    for group in groups:
        kinds = {_kind(value) for value in group or ()} - {None, "cpu"}
        if kinds:
            return _NAME in kinds
    return bool(_get_available_device_type() == _NAME)


def _kind(value: Any) -> str | None:
    if isinstance(value, str):
        value = torch.device(value)
    if isinstance(value, torch.Tensor):
        value = value.device
    return value.type if isinstance(value, torch.device) else None


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)


def _flagos(index: int) -> torch.device:
    _check(index >= 0, f"Expected non-negative device index, but got {index}")
    return torch.device(_NAME, index)


def _destination(destination: DeviceLike) -> torch.device:
    if destination is None:
        return torch.device(_NAME, torch.flagos.current_device())
    if isinstance(destination, int):
        return torch.device("cpu") if destination == _CPU_INDEX else _flagos(destination)
    return torch.device(destination)


def _broadcast(tensor: torch.Tensor, indices: Sequence[int]) -> tuple[torch.Tensor, ...]:
    copies = []
    for device in map(_flagos, indices):
        if device == tensor.device:
            copies.append(tensor)
            continue
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, layout=tensor.layout, device=device)
        copies.append(copy.copy_(tensor, non_blocking=True))
    return tuple(copies)


def _broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    for i, target in enumerate(out):
        _check_output_kind(target, i)
        _check(
            target.shape == tensor.shape,
            f"Expected all output tensors to have same shape as the source tensor {list(tensor.shape)}, "
            f"but output tensor at index {i} has shape {list(target.shape)}",
        )
    for target in out:
        target.copy_(tensor, non_blocking=True)
    return tuple(out)


def _broadcast_coalesced(
    tensors: list[torch.Tensor], indices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    source = _flagos(indices[0])
    _check(all(t.device == source for t in tensors), f"All tensors must be on devices[0]: {indices[0]}")
    outputs: list[list[torch.Tensor]] = [tensors] + [[] for _ in indices[1:]]
    for chunk in _take_tensors(tensors, buffer_size):
        if chunk[0].is_sparse:
            pairs = zip(*(_broadcast(part, indices) for part in _flatten_sparse_tensors(chunk)), strict=True)
            copies = [_unflatten_sparse_tensors(pair, chunk) for pair in pairs]
        else:
            flats = _broadcast(_flatten_dense_tensors(chunk), indices)
            copies = [_unflatten_dense_tensors(flat, chunk) for flat in flats]
        for output, copy in zip(outputs[1:], copies[1:], strict=True):
            # `data`: views of one flat tensor would share a version counter although nothing else reads that tensor,
            # and changing one buffer in place would make autograd reject all others.
            output.extend(t.data for t in copy)
    return [tensors] + [list(_reorder_tensors_as(output, tensors)) for output in outputs[1:]]


def _scatter(
    tensor: torch.Tensor,
    indices: Sequence[int],
    chunk_sizes: list[int] | None,
    dim: int,
    streams: Sequence[torch.Stream | None] | None,
) -> tuple[torch.Tensor, ...]:
    _check(len(indices) > 0, "Expected at least one device to scatter to")
    if chunk_sizes is None:
        chunks = tensor.chunk(len(indices), dim)
    else:
        _check(
            len(chunk_sizes) == len(indices),
            "Expected devices and chunk_sizes to be of same length, but got "
            f"len(devices) = {len(indices)} and len(chunk_sizes) = {len(chunk_sizes)}",
        )
        chunks = tensor.split_with_sizes(chunk_sizes, dim)
    results = []
    # A short batch makes fewer chunks than there are devices.
    for i, (chunk, index) in enumerate(zip(chunks, indices, strict=False)):
        device = _flagos(index)
        if chunk.device != device:
            with torch.flagos.stream(_stream(streams, i, index)):
                chunk = chunk.to(device, non_blocking=True)
        results.append(chunk)
    return tuple(results)


def _scatter_out(
    tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int, streams: Sequence[torch.Stream | None] | None
) -> tuple[torch.Tensor, ...]:
    _check(len(out) > 0, "Expected at least one output tensor to scatter to")
    length = tensor.size(dim)
    dim %= tensor.dim()
    sizes = []
    for i, target in enumerate(out):
        _check_output_kind(target, i)
        _check(
            target.dim() == tensor.dim() and _other_sizes(target, dim) == _other_sizes(tensor, dim),
            f"Output tensor at index {i} has incorrect shape: {list(target.shape)}. Expected same "
            f"shape except for scatter dim {dim} as the source tensor: {list(tensor.shape)}",
        )
        sizes.append(target.size(dim))
    _check(
        sum(sizes) == length,
        f"Total size for output tensors along scatter dim {dim} does not match the source tensor size at dim {dim}. "
        f"Expected {length}, but got total size {sum(sizes)}",
    )
    for i, (target, chunk) in enumerate(zip(out, tensor.split_with_sizes(sizes, dim), strict=True)):
        with torch.flagos.stream(_stream(streams, i, target.get_device())):
            target.copy_(chunk, non_blocking=True)
    return tuple(out)


def _stream(streams: Sequence[torch.Stream | None] | None, i: int, index: int) -> torch.Stream | None:
    stream = streams[i] if streams is not None and i < len(streams) else None
    if stream is not None:
        _check(
            stream.device_index == index,
            f"Expected the device associated with the stream at index {i} (was {stream.device_index}) "
            f"to match the device supplied at that index (expected {index})",
        )
    return stream


def _gather(tensors: Sequence[torch.Tensor], dim: int, device: torch.device) -> torch.Tensor:
    shape = _gathered_shape(tensors, dim)
    formats = {suggest_memory_format(tensor) for tensor in tensors}
    result = torch.empty(
        shape,
        dtype=tensors[0].dtype,
        device=device,
        memory_format=formats.pop() if len(formats) == 1 else torch.contiguous_format,
    )
    return _fill(result, tensors, dim)


def _gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    shape = _gathered_shape(tensors, dim)
    _check(list(out.shape) == shape, f"Expected out tensor to have shape {shape}, but got {list(out.shape)}")
    return _fill(out, tensors, dim)


def _gathered_shape(tensors: Sequence[torch.Tensor], dim: int) -> list[int]:
    _check(len(tensors) > 0, "Expected at least one tensor to gather from")
    first = tensors[0]
    shape, total = list(first.shape), 0
    for i, tensor in enumerate(tensors):
        _check(
            tensor.device.type == _NAME,
            f"Expected all input tensors to be {_NAME} tensors, but tensor at index {i} has device {tensor.device}",
        )
        _check(
            tensor.dim() == first.dim(),
            "Expected all input tensors to have the same number of dimensions, but "
            f"tensor at index {i} has {tensor.dim()} dimensions, (expected {first.dim()})",
        )
        shape[dim] = tensor.size(dim)
        _check(
            list(tensor.shape) == shape,
            f"Input tensor at index {i} has invalid shape {list(tensor.shape)}, but expected {shape}",
        )
        total += tensor.size(dim)
    shape[dim] = total
    return shape


def _fill(result: torch.Tensor, tensors: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    start = 0
    for tensor in tensors:
        # The host may read a CPU result at once, so only a device result is filled behind its back.
        result.narrow(dim, start, tensor.size(dim)).copy_(tensor, non_blocking=result.device.type == _NAME)
        start += tensor.size(dim)
    return result


def _check_output_kind(target: torch.Tensor, i: int) -> None:
    _check(
        target.device.type == _NAME,
        f"Expected all output tensors to be {_NAME} tensors, but output tensor at index {i} "
        f"has device '{target.device}'",
    )


def _other_sizes(tensor: torch.Tensor, dim: int) -> list[int]:
    return [size for i, size in enumerate(tensor.shape) if i != dim]
