# SPDX-License-Identifier: Apache-2.0
"""Does the same thing on the reference and on the device, and records what differs (modules, optimizers)."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch

from conformance.ops import entry
from conformance.ops.compare import Comparer
from conformance.ops.move import Mover, tensors_in
from conformance.ops.result import EntryResult
from conformance.ops.sides import on_side

SEED = 1234


class Pair:
    """The two places, the entry's result so far, and the sample in work."""

    def __init__(
        self, device: torch.device, reference: torch.device, rules: entry.Rules, beacon: Callable[[str], None]
    ) -> None:
        self.device = device
        self.reference = reference
        self.beacon = beacon
        self.result = EntryResult(key="")
        self.compare = Comparer(device, reference, values=not rules.metadata_only, cpu_allowed=rules.cpu_result)
        self.compare.tolerance = rules.tolerance
        self.index = -1

    def to_reference(self) -> Mover:
        """A mover for one argument tree that was made on the device."""
        return Mover(self.device, self.reference)

    def to_device(self) -> Mover:
        """A mover that makes an independent copy on the device."""
        return Mover(self.device, self.device)

    def both(self, kind: str, want: Callable[[], Any], got: Callable[[], Any]) -> tuple[Any, Any] | None:
        """Runs both with the same seed; None (and a record of it) if either raised."""
        value = self._on("reference", kind, want)
        if isinstance(value, _Raised):
            self.result.add_stat("reference_raised")
            return None
        mine = self._on("device", kind, got)
        if isinstance(mine, _Raised):
            self.error(kind, mine.error)
            return None
        return value, mine

    def _on(self, side: str, kind: str, function: Callable[[], Any]) -> Any:
        self.beacon(f"sample {self.index} {kind} on the {side}")
        torch.manual_seed(SEED)
        try:
            with on_side(side, self.reference):
                return function()
        except Exception as e:
            return _Raised(e)

    def raises(self, kind: str, want: Callable[[], Any], got: Callable[[], Any]) -> None:
        """Where the reference raises, the device must raise the same type."""
        first = self._on("reference", kind, want)
        if not isinstance(first, _Raised):
            self.result.add_stat("error_input_without_error")
            return
        second = self._on("device", kind, got)
        self.result.add_stat("errors_checked")
        name = type(first.error).__name__
        if not isinstance(second, _Raised):
            self.result.fail(self.index, kind, f"did not raise {name}: {first.error}")
        elif type(second.error) is not type(first.error):
            line = f"raised {type(second.error).__name__} instead of {name}: {first.error}"
            self.result.fail(self.index, kind, line, str(second.error))

    def same(self, kind: str, want: Any, got: Any) -> bool:
        """Compares, counts and records; True if they agree."""
        self.result.add_check(kind)
        try:
            line = self.compare.compare(want, got, kind)
        except Exception as e:  # reading the result back failed
            self.error(kind, e)
            return False
        if line:
            self.result.fail(self.index, kind, line)
        return line is None

    def backward(self, kind: str, want_out: Any, got_out: Any, want_leaves: list, got_leaves: list) -> None:
        """Compares the gradients of the leaves for equal random incoming gradients."""
        roots = [(w, g) for w, g in zip(tensors_in(want_out), tensors_in(got_out), strict=False) if w.requires_grad]
        if not roots or not want_leaves or not all(g.requires_grad for _, g in roots):
            return
        torch.manual_seed(SEED + 1)
        seeds = [torch.randn_like(w) for w, _ in roots]
        moved = Mover(self.reference, self.device)(seeds)

        def grads(tensors: list, leaves: list, incoming: list) -> list:
            return list(torch.autograd.grad(tensors, leaves, incoming, allow_unused=True))

        made = self.both(
            f"{kind} grad",
            lambda: grads([w for w, _ in roots], want_leaves, seeds),
            lambda: grads([g for _, g in roots], got_leaves, moved),
        )
        if made:
            self.same(f"{kind}_grad", *made)

    def error(self, kind: str, e: Exception) -> None:
        """Records that the device raised."""
        detail = "".join(traceback.format_exception(e))
        self.result.fail(self.index, kind, f"{type(e).__name__}: {e}", detail, error=True)

    def finish(self) -> EntryResult:
        """The entry's result."""
        for name in ("close_only", "wrong_device"):
            if getattr(self.compare, name):
                self.result.add_stat(name, getattr(self.compare, name))
        self.result.finish()
        return self.result


class _Raised:
    def __init__(self, error: Exception) -> None:
        self.error = error
