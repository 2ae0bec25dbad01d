# SPDX-License-Identifier: Apache-2.0
"""Deep copies of call arguments from one device to another, bit for bit and stride for stride."""

from __future__ import annotations

import copy
from typing import Any

import torch

_COMPRESSED = {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
_ROWS_FIRST = {torch.sparse_csr, torch.sparse_bsr}


class Mover:
    """Copies one argument tree to `target`.

    Kept: values, sizes, strides, storage offset, conj and neg bits, sparse layouts, requires_grad, and sharing: tensors
    that share a storage (or are the same object) still do afterwards. A tensor that does not live on `source` (an index
    or length tensor that stays on the CPU) is copied where it lives. A torch.device, a device string and a generator of
    the source device are mapped. One Mover serves one call: its memory of what it has seen is what keeps the sharing.
    """

    def __init__(self, source: torch.device, target: torch.device) -> None:
        self.source = source
        self.target = target
        self._names = {source.type, str(source)}
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._storages: dict[int, tuple[Any, torch.Tensor]] = {}

    def __call__(self, value: Any) -> Any:
        """Returns the copy of `value`; what is neither a container nor bound to a device is returned as it is."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        kind = type(value)
        if kind is tuple or kind is list:
            return kind([self(v) for v in value])
        if kind is dict:
            return {k: self(v) for k, v in value.items()}
        if kind is str:
            return str(self.target) if value in self._names else value
        if isinstance(value, torch.device):
            return self.target if value.type == self.source.type else value
        if kind is slice:
            return slice(self(value.start), self(value.stop), self(value.step))
        if isinstance(value, torch.Generator):
            place = self.target if value.device.type == self.source.type else value.device
            return torch.Generator(device=place).manual_seed(value.initial_seed())
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return kind(*[self(v) for v in value])
        if isinstance(value, torch.nn.Module):
            return copy.deepcopy(value).to(self.target)
        return value

    def _tensor(self, t: torch.Tensor) -> torch.Tensor:
        seen = self._tensors.get(id(t))
        if seen is not None:
            return seen[1]
        place = self.target if t.device.type == self.source.type else t.device
        with torch.no_grad():
            out = self._copy(t.detach(), place)
        if isinstance(t, torch.nn.Parameter):
            out = torch.nn.Parameter(out, t.requires_grad)
        elif t.requires_grad:
            out.requires_grad_(True)
        self._tensors[id(t)] = (t, out)
        return out

    def _copy(self, t: torch.Tensor, place: torch.device) -> torch.Tensor:
        if t.layout == torch.strided and type(t) is torch.Tensor and not t.is_quantized and not t.is_nested:
            return self._strided(t, place)
        if t.layout == torch.sparse_coo:
            return torch.sparse_coo_tensor(
                self._copy(t._indices(), place),
                self._copy(t._values(), place),
                t.shape,
                is_coalesced=t.is_coalesced(),
                check_invariants=False,
            )
        if t.layout in _COMPRESSED:
            rows = t.layout in _ROWS_FIRST
            return torch.sparse_compressed_tensor(
                self._copy(t.crow_indices() if rows else t.ccol_indices(), place),
                self._copy(t.col_indices() if rows else t.row_indices(), place),
                self._copy(t.values(), place),
                t.shape,
                layout=t.layout,
                check_invariants=False,
            )
        return t.to(place, copy=True)

    def _strided(self, t: torch.Tensor, place: torch.device) -> torch.Tensor:
        storage = t.untyped_storage()
        key = storage._cdata
        known = self._storages.get(key)
        special = t.is_conj() or t.is_neg()
        if known is None:
            whole = t.storage_offset() == 0 and storage.nbytes() == t.numel() * t.element_size() and t.is_contiguous()
            if whole and not special:
                out = t.to(place, copy=True)
                self._storages[key] = (storage, out)
                return out
            flat = torch.empty(0, dtype=torch.uint8, device=t.device).set_(storage)
            known = (storage, flat.to(place, copy=True))
            self._storages[key] = known
        out = torch.empty(0, dtype=t.dtype, device=place)
        out.set_(known[1].untyped_storage(), t.storage_offset(), t.size(), t.stride())
        if t.is_conj():
            out = torch._conj(out)
        if t.is_neg():
            out = torch._neg_view(out)
        return out


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors of a tree of lists, tuples, dicts and slices, in order of appearance."""
    found: list[torch.Tensor] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for v in value:
            _collect(v, found)
    elif isinstance(value, dict):
        for v in value.values():
            _collect(v, found)
    elif isinstance(value, slice):
        _collect((value.start, value.stop, value.step), found)


def names_place(value: Any, kind: str) -> bool:
    """True if the tree names a device of this type: a torch.device or a string such as "cpu" or "cpu:0"."""
    if isinstance(value, torch.device):
        return value.type == kind
    if isinstance(value, str):
        return value.split(":")[0] == kind
    if isinstance(value, (list, tuple)):
        return any(names_place(v, kind) for v in value)
    if isinstance(value, dict):
        return any(names_place(v, kind) for v in value.values())
    return False
