# SPDX-License-Identifier: Apache-2.0
"""Compares a result of the device with that of the reference: structure, device, metadata, strides, values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

# Both sides usually run the same kernel, so equality is the rule; what is allowed beyond it covers a kernel that picks
# another vector path because the memory is aligned differently. (rtol, atol); a dtype that is not listed must be equal.
TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-9, 1e-9),
    torch.complex128: (1e-9, 1e-9),
    torch.float32: (1e-5, 1e-5),
    torch.complex64: (1e-5, 1e-5),
    torch.float16: (2e-3, 1e-4),
    torch.complex32: (2e-3, 1e-4),
    torch.bfloat16: (1e-2, 1e-4),
}
_SLACK = 8.0
_MEMBERS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


@dataclass
class Comparer:
    """Compares results; every method returns None if they agree, else one line that says where they do not.

    `device` is where results belong, `reference` where those of the reference do. With `values` off only metadata
    is compared (uninitialised results). `cpu_allowed` lets a result lie on the CPU,
    `reference_allowed` on the reference's device if the reference's result lies there. `close_only` counts comparisons
    that held only within the tolerance, `wrong_device` results that lay elsewhere.
    """

    device: torch.device
    reference: torch.device
    values: bool = True
    cpu_allowed: bool = False
    reference_allowed: bool = False
    tolerance: tuple[float, float] | None = None
    close_only: int = 0
    wrong_device: int = 0
    slackness: float = 1.0
    _path: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def slack(self) -> Iterator[None]:
        """Wider tolerances inside the block, for values that the reference itself does not repeat."""
        self.slackness = _SLACK
        try:
            yield
        finally:
            self.slackness = 1.0

    def compare(self, want: Any, got: Any, path: str = "result") -> str | None:
        """`want` is the reference's, `got` the device's; both any tree of tensors and plain values."""
        if isinstance(want, torch.Tensor):
            if not isinstance(got, torch.Tensor):
                return f"{path}: {type(got).__name__} instead of a tensor"
            return self.tensor(want, got, path)
        if isinstance(want, (list, tuple)):
            if type(want) is not type(got):
                return f"{path}: {type(got).__name__} instead of {type(want).__name__}"
            if len(want) != len(got):
                return f"{path}: {len(got)} items instead of {len(want)}"
            for i, (w, g) in enumerate(zip(want, got, strict=False)):
                line = self.compare(w, g, f"{path}[{i}]")
                if line:
                    return line
            return None
        if isinstance(want, dict):
            if not isinstance(got, dict) or list(want) != list(got):
                return f"{path}: keys {_brief(got)} instead of {_brief(want)}"
            for k, w in want.items():
                line = self.compare(w, got[k], f"{path}[{k!r}]")
                if line:
                    return line
            return None
        return self._plain(want, got, path)

    def _plain(self, want: Any, got: Any, path: str) -> str | None:
        if type(want) is not type(got):
            return f"{path}: {type(got).__name__} {_brief(got)} instead of {type(want).__name__} {_brief(want)}"
        if isinstance(want, torch.device):
            same = got.type == (self.device.type if want.type == self.reference.type else want.type) or got == want
            return None if same else f"{path}: device {got} instead of {want}"
        if isinstance(want, (float, complex)):
            if want == got or (want != want and got != got):
                return None
            rtol, atol = self.tolerance or (1e-6, 1e-9)
            if abs(want - got) <= atol + rtol * abs(want):
                self.close_only += 1
                return None
            return f"{path}: {got!r} instead of {want!r}"
        try:
            same = bool(want == got)
        except Exception:  # objects without a usable equality (functions, generators) carry no result
            return None
        if same or not isinstance(want, (int, str, bytes, type(None), torch.dtype, torch.Size, torch.layout)):
            return None
        return f"{path}: {_brief(got)} instead of {_brief(want)}"

    def tensor(self, want: torch.Tensor, got: torch.Tensor, path: str) -> str | None:
        """Device, dtype, layout, shape, strides, offset, conj/neg bits and requires_grad, then values."""
        line = self._place(want, got, path) or _metadata(want, got, path)
        if line or not self.values:
            return line
        if want.layout == torch.strided:
            return self._close(want, got, path)
        names = _MEMBERS.get(want.layout)
        if names is None:  # an opaque layout: compare what it stands for
            return self._close(want.to_dense(), got.to_dense(), path)
        if want.layout == torch.sparse_coo and want.is_coalesced() != got.is_coalesced():
            return f"{path}: is_coalesced {got.is_coalesced()} instead of {want.is_coalesced()}"
        want, got = want.detach(), got.detach()
        for name in names:
            line = self.tensor(getattr(want, name)(), getattr(got, name)(), f"{path}.{name}()")
            if line:
                return line
        return None

    def _place(self, want: torch.Tensor, got: torch.Tensor, path: str) -> str | None:
        place = got.device
        if place.type == self.device.type and place.index in (None, self.device.index or 0):
            # With a reference that is itself an accelerator, its own result tells what must stay on the CPU.
            if self.reference.type == "cpu" or want.device.type == self.reference.type:
                return None
        elif place.type == "cpu" and self.reference.type != "cpu" and want.device.type == "cpu":
            return None
        elif place.type == "cpu" and self.cpu_allowed:
            return None
        elif self.reference_allowed and place.type == want.device.type == self.reference.type != "cpu":
            return None
        self.wrong_device += 1
        return f"{path}: on {place} instead of {self.device if place.type != self.device.type else want.device}"

    def _close(self, want: torch.Tensor, got: torch.Tensor, path: str) -> str | None:
        want, got = want.detach().cpu(), got.detach().cpu()
        try:
            if torch.equal(want, got):
                return None
        except (RuntimeError, NotImplementedError):  # no equal for this dtype (some 8-bit floats)
            want, got = want.to(torch.float32), got.to(torch.float32)
            if torch.equal(want, got):
                return None
        rtol, atol = (self.slackness * x for x in self.tolerance or TOLERANCES.get(want.dtype, (0.0, 0.0)))
        if want.dtype == torch.complex32:
            want, got = want.to(torch.complex64), got.to(torch.complex64)
        if self.slackness > 1:  # terms of any size may have cancelled
            finite = want[want.isfinite()]
            atol += rtol * float(finite.abs().max()) if finite.numel() else 0.0
        good = torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
        if bool(good.all()):
            if not bool(((want == got) | ((want != want) & (got != got))).all()):
                self.close_only += 1
            return None
        bad = (~good).nonzero()
        where = tuple(bad[0].tolist())
        first = f"first at {where}: {got[where].item()!r} instead of {want[where].item()!r}"
        return f"{path}: {bad.shape[0]} of {want.numel()} values differ, {first}"


def _metadata(want: torch.Tensor, got: torch.Tensor, path: str) -> str | None:
    if want.dtype != got.dtype:
        return f"{path}: dtype {got.dtype} instead of {want.dtype}"
    if want.layout != got.layout:
        return f"{path}: layout {got.layout} instead of {want.layout}"
    if want.shape != got.shape:
        return f"{path}: shape {tuple(got.shape)} instead of {tuple(want.shape)}"
    if want.requires_grad != got.requires_grad:
        return f"{path}: requires_grad {got.requires_grad} instead of {want.requires_grad}"
    if want.layout != torch.strided or want.is_nested:
        return None
    if want.stride() != got.stride():
        return f"{path}: stride {got.stride()} instead of {want.stride()}"
    if want.storage_offset() != got.storage_offset():
        return f"{path}: storage offset {got.storage_offset()} instead of {want.storage_offset()}"
    if want.is_conj() != got.is_conj() or want.is_neg() != got.is_neg():
        return f"{path}: conj/neg bits {got.is_conj()}/{got.is_neg()} instead of {want.is_conj()}/{want.is_neg()}"
    return None


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
