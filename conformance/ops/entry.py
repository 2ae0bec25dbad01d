# SPDX-License-Identifier: Apache-2.0
"""Runs one OpInfo entry in all its forms on the device and on the reference, and compares."""

from __future__ import annotations

import random
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.ops.compare import Comparer
from conformance.ops.move import Mover, names_place, tensors_in
from conformance.ops.result import EntryResult
from conformance.ops.sides import current_side, on_side  # noqa: F401 - current_side is asked for here

FORMS = ("forward", "backward", "in_place", "out", "non_contiguous", "errors")
_SEED = 1234


@dataclass
class Rules:
    """What the expectation file says about one entry."""

    metadata_only: bool = False
    cpu_result: bool = False
    tolerance: tuple[float, float] | None = None


@dataclass
class Setting:
    """How entries are run: where, how many samples of each (0: all), in which forms, in which layouts."""

    device: torch.device
    reference: torch.device
    samples: int = 0
    forms: tuple[str, ...] = FORMS
    layouts: tuple[str, ...] = ("strided",)


@dataclass
class Call:
    """One call: its callable, its (already copied) arguments, and after it ran what came back or was raised."""

    input: Any
    args: tuple
    kwargs: dict[str, Any]
    result: Any = None
    error: Exception | None = None
    versions: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.versions = [t._version for t in tensors_in(self.tree())]

    def tree(self) -> tuple:
        """All arguments."""
        return (self.input, self.args, self.kwargs)


def quiet() -> None:
    """Turns warnings off: samples provoke hundreds, and none of them is what this suite compares."""
    warnings.simplefilter("ignore")
    torch.set_warn_always(False)


class EntryRunner:
    """Runs one entry. `beacon` is told where the run is, so that a crash can be named by the parent process."""

    def __init__(
        self, op: Any, dtype: torch.dtype, setting: Setting, rules: Rules, beacon: Callable[[str], None]
    ) -> None:
        self.op = op
        self.dtype = dtype
        self.set = setting
        self.rules = rules
        self.beacon = beacon
        self.result = EntryResult(key="")
        self.compare = Comparer(setting.device, setting.reference, values=not rules.metadata_only)
        self.compare.tolerance = rules.tolerance if dtype.is_floating_point or dtype.is_complex else None
        self.index = -1
        self.counted = False

    # -- the run

    def run(self) -> EntryResult:
        """Runs every sample in every form; never raises for what the device does wrong."""
        start = time.process_time()
        for sample in self._samples():
            self.counted = False
            self._sample(sample)
            self.result.samples += self.counted
        if "errors" in self.set.forms:
            self._errors()
        for name in ("close_only", "wrong_device"):
            if getattr(self.compare, name):
                self.result.add_stat(name, getattr(self.compare, name))
        self.result.finish()
        self.result.seconds = time.process_time() - start
        return self.result

    def differentiable(self) -> bool:
        """True if the database lists this dtype for backward on the reference."""
        return self.dtype in self.op.supported_backward_dtypes(self.set.reference.type)

    def _samples(self) -> Iterator[Any]:
        grad = self.differentiable() and "backward" in self.set.forms
        for layout in self.set.layouts:
            torch.manual_seed(_SEED)
            random.seed(_SEED)
            self.beacon("making samples")
            try:
                made = list(self.make_samples(layout, grad))
            except Exception as e:
                if layout == "strided":
                    self._report("samples", e)
                continue
            yield from self._pick(made)

    def make_samples(self, layout: str, grad: bool) -> Any:
        """The database's samples, created on the device under test."""
        if layout == "strided":
            return self.op.sample_inputs(self.set.device, self.dtype, requires_grad=grad, set_seed=False)
        kind = getattr(torch, layout)
        if not self.op.supports_sparse_layout(kind):
            return []
        return self.op.sample_inputs_sparse(kind, self.set.device, self.dtype, requires_grad=grad)

    def _pick(self, made: list[Any]) -> Iterator[Any]:
        n = self.set.samples
        chosen = range(len(made)) if not 0 < n < len(made) else sorted({i * len(made) // n for i in range(n)})
        for i in chosen:
            self.index = i
            yield made[i]

    def _sample(self, sample: Any) -> None:
        tree = (sample.input, sample.args, sample.kwargs)
        if any(t.numel() == 0 for t in tensors_in(tree)):
            self.result.add_stat("zero_size")
        self.compare.cpu_allowed = self._may_lie_on_cpu(tree)
        # Some samples name an accelerator of this machine; a call that does belongs there on both sides.
        self.compare.reference_allowed = names_place(tree, self.set.reference.type)
        grad = self.differentiable() and "backward" in self.set.forms
        forms = self.set.forms
        self._form("forward", sample, tree, self.op, False)
        if not self.counted:
            return
        if grad:
            self._form("backward", sample, tree, self.op, True)
        in_place = self.op.inplace_variant if "in_place" in forms and not sample.broadcasts_input else None
        if in_place is not None:
            self._form("in_place", sample, tree, in_place, grad and self.op.supports_inplace_autograd)
        if "out" in forms and self.op.supports_out:
            self._outs(sample, tree)
        if "non_contiguous" in forms:
            self._non_contiguous(sample, grad, in_place)

    def _may_lie_on_cpu(self, tree: tuple) -> bool:
        """A call that names the CPU, or that neither names the device nor has a tensor there, may answer on the CPU."""
        kind = self.set.device.type
        if kind == "cpu" or names_place(tree, kind):
            return False
        if self.rules.cpu_result or names_place(tree, "cpu"):
            return True
        return all(t.device.type != kind for t in tensors_in(tree))

    def _non_contiguous(self, sample: Any, grad: bool, in_place: Callable | None) -> None:
        if any(t.layout != torch.strided for t in tensors_in((sample.input, sample.args, sample.kwargs))):
            return
        try:
            strided = sample.noncontiguous()
        except Exception:  # the database cannot make every sample non-contiguous
            self.result.add_stat("no_non_contiguous_sample")
            return
        tree = (strided.input, strided.args, strided.kwargs)
        self._form("non_contiguous", sample, tree, self.op, grad)
        if in_place is not None:
            self._form("non_contiguous_in_place", sample, tree, in_place, False)

    # -- one form of one sample

    def _copies(self, tree: tuple) -> tuple[Call, Call]:
        want = Mover(self.set.device, self.set.reference)(tree)
        got = Mover(self.set.device, self.set.device)(tree)
        return Call(*want), Call(*got)

    def _form(self, kind: str, sample: Any, tree: tuple, function: Callable, grad: bool) -> None:
        try:
            want, got = self._copies(tree)
        except Exception as e:
            return self._report(f"{kind}: copying the sample", e)
        in_place = kind.endswith("in_place")
        self._call("reference", kind, want, sample, function, grad, in_place)
        self._call("device", kind, got, sample, function, grad, in_place)
        if not self._comparable(kind, want, got):
            return
        if self._check(kind, want, got) and grad:  # gradients of a wrong result would only repeat it

            def again() -> Call:
                call = Call(*Mover(self.set.device, self.set.reference)(tree))
                self._call("reference", kind, call, sample, function, grad, in_place)
                return call

            self._backward(kind, want, got, again)

    def _call(
        self, side: str, kind: str, call: Call, sample: Any, function: Callable, grad: bool, in_place: bool = False
    ) -> None:
        self.beacon(f"sample {self.index} {kind} on the {side}")
        torch.manual_seed(_SEED)
        try:
            with on_side(side, self.set.reference), torch.set_grad_enabled(grad):
                first = call.input
                if in_place and grad:  # a leaf must not be changed in place
                    first = [t.clone() for t in first] if isinstance(first, list) else first.clone()
                call.result = function(first, *call.args, **call.kwargs)
                if in_place:
                    call.result = (call.result is first, first, [t._version for t in tensors_in(first)])
                elif grad:
                    call.result = sample.output_process_fn_grad(call.result)
        except Exception as e:
            call.error = e

    def _comparable(self, kind: str, want: Call, got: Call) -> bool:
        if want.error is not None:
            self.result.add_stat("reference_raised" if kind == "forward" else "form_not_possible")
            if got.error is None:
                self.result.add_stat("no_raise")
            return False
        self.counted = True
        self.result.add_check(kind)
        if got.error is not None:
            self._report(kind, got.error)
            return False
        return True

    def _check(self, kind: str, want: Call, got: Call) -> bool:
        try:
            line = (
                self.compare.compare(want.result, got.result)
                # torch resizes out= below the version counter on CPU and CUDA, through the dispatcher elsewhere
                or (None if kind == "out_resized" else _changes(want, got))
                or self._changed_values(want, got)
                or _sharing(want, got)
            )
        except Exception as e:  # reading the result back failed
            self._report(f"{kind}: reading the result", e)
            return False
        if line:
            self.result.fail(self.index, kind, line)
        return line is None

    def _changed_values(self, want: Call, got: Call) -> str | None:
        allowed, self.compare.cpu_allowed = self.compare.cpu_allowed, True  # an argument lies where it lay
        try:
            for i, (w, g) in enumerate(zip(tensors_in(want.tree()), tensors_in(got.tree()), strict=False)):
                if w._version != want.versions[i]:
                    line = self.compare.compare(w, g, f"argument {i} after the call")
                    if line:
                        return line
        finally:
            self.compare.cpu_allowed = allowed
        return None

    def _backward(self, kind: str, want: Call, got: Call, again: Callable[[], Call]) -> None:
        roots = [
            (w, g) for w, g in zip(tensors_in(want.result), tensors_in(got.result), strict=False) if w.requires_grad
        ]
        roots = [(w, g) for w, g in roots if g.requires_grad]  # a missing requires_grad was reported by _check
        leaves = [t for t in tensors_in(want.tree()) if t.requires_grad and t.is_leaf]
        mine = [t for t in tensors_in(got.tree()) if t.requires_grad and t.is_leaf]
        if not roots or not leaves or len(leaves) != len(mine):
            return
        torch.manual_seed(_SEED + 1)
        try:
            seeds = [torch.randn_like(w) if w.layout == torch.strided else torch.ones_like(w) for w, _ in roots]
            grads = self._grads("reference", kind, [w for w, _ in roots], leaves, seeds)
        except Exception:
            self.result.add_stat("reference_raised_in_backward")
            return
        self.result.add_check(f"{kind}_grad" if kind != "backward" else "grad")
        try:
            move = Mover(self.set.reference, self.set.device)
            moved = [move(s) if g.device.type != "cpu" else s for s, (_, g) in zip(seeds, roots, strict=False)]
            device_grads = self._grads("device", kind, [g for _, g in roots], mine, moved)
            line = self.compare.compare(grads, device_grads, "grad")
            if line and self._unsteady(kind, again, grads, seeds):
                self.result.add_stat("reference_unsteady")
                with self.compare.slack():
                    line = self.compare.compare(grads, device_grads, "grad")
        except Exception as e:
            return self._report(f"{kind} grad", e)
        if line:
            self.result.fail(self.index, kind, line)

    def _unsteady(self, kind: str, again: Callable[[], Call], first: list, seeds: list) -> bool:
        """True if the reference, asked again, gives other gradients than before: kernels that add up in any order."""
        if self.set.reference.type == "cpu":
            return False
        for _ in range(3):
            call = again()
            roots = [t for t in tensors_in(call.result) if t.requires_grad]
            leaves = [t for t in tensors_in(call.tree()) if t.requires_grad and t.is_leaf]
            grads = self._grads("reference", kind, roots, leaves, seeds)
            for before, now in zip(first, grads, strict=True):
                if isinstance(before, torch.Tensor) and before.layout == torch.strided and not torch.equal(before, now):
                    return True
        return False

    def _grads(self, side: str, kind: str, roots: list, leaves: list, seeds: list) -> list[torch.Tensor | None]:
        self.beacon(f"sample {self.index} {kind} grad on the {side}")
        with on_side(side, self.set.reference):
            return list(torch.autograd.grad(roots, leaves, seeds, allow_unused=True))

    # -- out=

    def _outs(self, sample: Any, tree: tuple) -> None:
        try:
            want, got = self._copies(tree)
        except Exception:
            return  # reported by the forward form
        self._call("reference", "out", want, sample, self.op, False)
        proper = want.result
        flat = [proper] if isinstance(proper, torch.Tensor) else proper
        if want.error is not None or not isinstance(flat, (list, tuple)):
            return
        if not all(isinstance(t, torch.Tensor) and t.layout == torch.strided for t in flat):
            return
        for kind, shaped in (("out", _same), ("out_resized", _empty), ("out_non_contiguous", _spread)):
            outs = [shaped(t) for t in flat]
            self._out(kind, sample, want, got, outs[0] if isinstance(proper, torch.Tensor) else tuple(outs))

    def _out(self, kind: str, sample: Any, base_want: Call, base_got: Call, outs: Any) -> None:
        got_outs = Mover(self.set.reference, self.set.device)(outs)
        outs = Mover(self.set.reference, self.set.reference)(outs)  # both are copies, so both have version 0
        want = Call(base_want.input, base_want.args, {**base_want.kwargs, "out": outs})
        got = Call(base_got.input, base_got.args, {**base_got.kwargs, "out": got_outs})
        before = [[t.data_ptr() for t in tensors_in(o)] for o in (outs, got_outs)]
        self._call("reference", kind, want, sample, self.op, False)
        self._call("device", kind, got, sample, self.op, False)
        if not self._comparable(kind, want, got):
            return
        after = [[t.data_ptr() for t in tensors_in(o)] for o in (outs, got_outs)]
        moved = [[a != b for a, b in zip(x, y, strict=False)] for x, y in zip(before, after, strict=False)]
        same = [
            all(a is b for a, b in zip(tensors_in(c.result), tensors_in(c.kwargs["out"]), strict=False))
            for c in (want, got)
        ]
        if kind != "out_resized" and moved[0] != moved[1]:
            self.result.fail(self.index, kind, f"out= memory replaced: {moved[1]} instead of {moved[0]}")
        elif same[0] != same[1]:
            self.result.fail(self.index, kind, "the result is not the out= tensor")
        else:
            self._check(kind, want, got)

    # -- error inputs

    def _errors(self) -> None:
        if self.op.error_inputs_func is None:
            return
        torch.manual_seed(_SEED)
        self.index = -1
        try:
            inputs = list(self.op.error_inputs(self.set.device, set_seed=False))
        except Exception as e:
            return self._report("making error inputs", e, only_if=lambda: self.op.error_inputs(self.set.reference))
        for self.index, item in enumerate(inputs):
            sample = item.sample_input
            try:
                want, got = self._copies((sample.input, sample.args, sample.kwargs))
            except Exception as e:
                self._report("error input: copying", e)
                continue
            self._call("reference", "error input", want, sample, self.op, False)
            if want.error is None:
                self.result.add_stat("error_input_without_error")
                continue
            self._call("device", "error input", got, sample, self.op, False)
            self.result.add_stat("errors_checked")
            if got.error is None:
                self.result.fail(self.index, "error input", f"did not raise {type(want.error).__name__}: {want.error}")
            elif type(got.error) is not type(want.error):
                line = f"raised {type(got.error).__name__} instead of {type(want.error).__name__}: {want.error}"
                self.result.fail(self.index, "error input", line, str(got.error))

    def _report(self, kind: str, error: Exception, only_if: Callable[[], Any] | None = None) -> None:
        if only_if is not None:
            try:
                list(only_if())
            except Exception:
                return  # the reference cannot do it either
        line = f"{type(error).__name__}: {error}".strip()
        detail = "".join(traceback.format_exception(error))
        self.result.fail(self.index, kind, line, detail, error=True)


def _changes(want: Call, got: Call) -> str | None:
    """Arguments must be changed as often as the reference changes them."""
    pairs = zip(tensors_in(want.tree()), tensors_in(got.tree()), strict=False)
    for i, (w, g) in enumerate(pairs):
        if w._version != g._version:
            return f"argument {i}: _version {g._version} instead of {w._version}"
    return None


def _sharing(want: Call, got: Call) -> str | None:
    """A result that is an argument, or shares an argument's storage, must do so on both sides."""
    wants, gots = tensors_in(want.result), tensors_in(got.result)
    if not wants:
        return None
    want_args, got_args = tensors_in(want.tree()), tensors_in(got.tree())
    for i, (w, g) in enumerate(zip(wants, gots, strict=False)):
        a = [w is x for x in want_args], _shares(w, want_args)
        b = [g is x for x in got_args], _shares(g, got_args)
        if a != b:
            return f"result {i}: is or shares an argument: {b} instead of {a}"
    return None


def _shares(t: torch.Tensor, others: list[torch.Tensor]) -> list[bool]:
    if t.layout != torch.strided:
        return []
    own = t.untyped_storage()._cdata
    return [o.layout == torch.strided and o.untyped_storage()._cdata == own for o in others]


def _same(t: torch.Tensor) -> torch.Tensor:
    return _filled(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device))


def _empty(t: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=t.dtype, device=t.device)


def _spread(t: torch.Tensor) -> torch.Tensor:
    return _filled(torch.empty((*t.shape, 2), dtype=t.dtype, device=t.device))[..., 1]


def _filled(t: torch.Tensor) -> torch.Tensor:
    """Fills with a value that a kernel which forgets an element leaves behind visibly."""
    return t.fill_(1 if t.dtype == torch.bool else 77)
