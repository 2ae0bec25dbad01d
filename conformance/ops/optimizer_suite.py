# SPDX-License-Identifier: Apache-2.0
"""`torch-fl conformance optimizers`: every entry of optim_db, in each implementation, for several steps.

Implementations: `default` (what torch picks: foreach on an accelerator, a loop on the CPU), `loop`, `foreach`, `fused`
(where the reference has it), `capturable` (against the reference without it, since the CPU refuses the flag).
"""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any

from conformance.ops.run import Beacon, apply_expectation, finish_options, parser, run_suite

STEPS = 4
# Scalars that torch keeps on the CPU unless the implementation needs them on the device ("t": LBFGS keeps lr there).
_COUNTERS = ("step", "mu_product", "t")
_FLAGS: dict[str, dict[str, bool]] = {
    "default": {},
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
}


class OptimizerSuite:
    """Entries are "Name.implementation dtype"; built inside a worker process."""

    def __init__(self, options: dict[str, Any]) -> None:
        from conformance.ops.device import open_device
        from conformance.ops.entry import quiet
        from conformance.ops.expectations import Expectations

        self.options = options
        self.device = open_device(options["device"])
        self.reference = open_device(options["against"])
        quiet()
        from torch.testing._internal.common_optimizers import optim_db

        self.infos = {info.name: info for info in optim_db}
        self.expectations = Expectations.load("optimizers", self.device.type, self.reference.type)

    def keys(self) -> list[str]:
        """All optimizers in all implementations."""
        import torch

        from conformance.ops.device import chosen_dtypes

        keys = []
        for name, info in self.infos.items():
            supported = {torch.float32, torch.float64, torch.bfloat16} | (
                {torch.complex64} if complex_ok(info) else set()
            )
            for implementation in implementations(info, self.device.type, self.reference.type):
                for dtype in chosen_dtypes(self.options["dtypes"], supported):
                    keys.append(f"{name}.{implementation} {dtype}")
        return keys

    def run(self, key: str, beacon: Beacon) -> Any:
        """Runs one entry."""
        from conformance.ops.pair import Pair
        from conformance.ops.result import SKIPPED, EntryResult

        name, dtype = key.rsplit(" ", 1)
        skip = self.expectations.find("skip", name, dtype)
        if skip:
            return EntryResult(key=key, status=SKIPPED, reason=skip["reason"])
        start = time.process_time()
        pair = Pair(self.device, self.reference, self.expectations.rules(name, dtype), beacon)
        optimizer, implementation = name.split(".")
        run_optimizer(self.infos[optimizer], implementation, dtype, pair, self.options["sample_count"])
        result = pair.finish()
        result.seconds = time.process_time() - start
        strict = self.options["sample_count"] == 0
        return apply_expectation(result, self.expectations.find("expect", name, dtype), strict)


def complex_ok(info: Any) -> bool:
    """True if the optimizer takes complex parameters."""
    return info.supports_complex and not info.only_supports_sparse_grads


def implementations(info: Any, device: str, reference: str) -> list[str]:
    """The implementations of an optimizer that both sides have."""
    found = ["default"]
    if "foreach" in info.supported_impls:
        found += ["loop", "foreach"]
    if "fused" in info.supported_impls and reference in info.supports_fused_on:
        found.append("fused")
    if info.has_capturable_arg and device != "cpu":
        found.append("capturable")
    return found


def run_optimizer(info: Any, implementation: str, dtype_name: str, pair: Any, samples: int = 0) -> None:
    """Runs one OptimizerInfo through `pair`."""
    import copy

    import torch

    from conformance.ops.device import DTYPES

    dtype = DTYPES[dtype_name]
    cases = [(i.desc, i.kwargs) for i in info.optim_inputs_func(device="cpu", dtype=dtype)]
    cases.append(("Tensor lr", {"lr": torch.tensor(0.01)}))
    runs = [(desc, kwargs, info.only_supports_sparse_grads) for desc, kwargs in cases]
    if info.supports_sparse and implementation in ("default", "loop"):
        runs.append(("sparse gradients", dict(info.metadata_for_sparse[0]), True))
    flags = _FLAGS[implementation]
    for pair.index, (_, kwargs, sparse) in enumerate(runs[: samples or None]):
        # Only the CPU refuses `capturable`.
        same = implementation != "capturable" or pair.reference.type != "cpu"
        want_flags = {**copy.deepcopy(kwargs), **(flags if same else {})}
        got_flags = {**copy.deepcopy(kwargs), **flags}
        _run_case(info, implementation, dtype, want_flags, got_flags, sparse, pair)
    if implementation == "default" and info.optim_error_inputs_func is not None:
        _run_errors(info, dtype, pair)


def _parameters(info: Any, dtype: Any, sparse: bool) -> list:
    """CPU parameters of mixed shapes and strides; only matrices where that is all the optimizer takes."""
    import torch

    torch.manual_seed(1)
    shapes: list[tuple[int, ...]] = [(4, 3), (6, 5)]
    if info.name != "Muon" and not sparse:
        shapes += [(7,), (), (2, 3, 2)]
    made = [torch.randn(s, dtype=dtype) for s in shapes]
    if not sparse and info.name != "LBFGS":  # LBFGS flattens gradients with view
        made[1] = made[1].t().contiguous().t()
    return made


def _gradients(parameters: list, step: int, sparse: bool) -> list:
    """CPU gradients of one step; the third parameter has none at the second step."""
    import torch

    torch.manual_seed(100 + step)
    made: list = []
    for i, p in enumerate(parameters):
        if i == 2 and step == 1:
            made.append(None)
        elif sparse:
            rows = torch.tensor([[0, 2]])
            made.append(torch.sparse_coo_tensor(rows, torch.randn(2, p.shape[1], dtype=p.dtype), p.shape))
        else:
            made.append(torch.randn_like(p))
    return made


class _Side:
    """One side of a case: its parameters and optimizer, and how its gradients get there."""

    def __init__(self, info: Any, dtype: Any, place: Any, kwargs: dict[str, Any], sparse: bool) -> None:
        import torch

        self.place = place
        self.sparse = sparse
        self.closure = info.step_requires_closure
        self.source = _parameters(info, dtype, sparse)
        self.params = [torch.nn.Parameter(self._move(p)) for p in self.source]
        groups: Any = self.params
        if info.supports_param_groups:
            groups = [{"params": self.params[:1]}, {"params": self.params[1:], "weight_decay": 0.02}]
            if info.only_supports_sparse_grads or sparse:
                groups = [{"params": self.params[:1]}, {"params": self.params[1:]}]
        self.optimizer = info.optim_cls(groups, **kwargs)

    def _move(self, t: Any) -> Any:
        import torch

        from conformance.ops.move import Mover

        return Mover(torch.device("cpu"), self.place)(t)

    def step(self, n: int) -> Any:
        """One step; returns the parameters. Half-way the state goes through state_dict and back."""
        gradients = [None if g is None else self._move(g) for g in _gradients(self.source, n, self.sparse)]
        if n == STEPS // 2:
            self.optimizer.load_state_dict(self.optimizer.state_dict())
        if self.closure:
            targets = gradients

            def closure() -> Any:
                self.optimizer.zero_grad()
                loss = sum(
                    (p - t).abs().pow(2).sum() for p, t in zip(self.params, targets, strict=False) if t is not None
                )
                loss.backward()
                return loss

            self.optimizer.step(closure)
            return self.params
        self.optimizer.zero_grad()
        for p, g in zip(self.params, gradients, strict=False):
            p.grad = g
        self.optimizer.step()
        return self.params

    def state(self, counters: bool) -> list:
        """The state per parameter: the counters, or everything else."""
        states = [self.optimizer.state.get(p, {}) for p in self.params]
        return [{k: v for k, v in s.items() if (k in _COUNTERS) == counters} for s in states]


def _run_case(
    info: Any, implementation: str, dtype: Any, want_kwargs: dict, got_kwargs: dict, sparse: bool, pair: Any
) -> None:
    made = pair.both(
        "construct",
        lambda: _Side(info, dtype, pair.reference, want_kwargs, sparse),
        lambda: _Side(info, dtype, pair.device, got_kwargs, sparse),
    )
    if not made:
        return
    want, got = made
    for n in range(STEPS):
        stepped = pair.both(f"step {n}", lambda n=n: want.step(n), lambda n=n: got.step(n))
        if not stepped:
            return
        good = pair.same("parameters", *stepped)
        good = pair.same("state", want.state(False), got.state(False)) and good
        pair.compare.cpu_allowed = implementation not in ("fused", "capturable")
        good = pair.same("counters", want.state(True), got.state(True)) and good
        pair.compare.cpu_allowed = False
        if not good:
            break
    pair.result.samples += 1


def _run_errors(info: Any, dtype: Any, pair: Any) -> None:
    import torch
    from torch.testing._internal.common_optimizers import OptimizerErrorEnum

    from conformance.ops.move import Mover

    for pair.index, item in enumerate(info.optim_error_inputs_func(device="cpu", dtype=dtype)):
        given = item.optimizer_error_input

        def attempt(place: Any, item: Any = item, given: Any = given) -> None:
            params = Mover(torch.device("cpu"), place)(given.params)
            if params is None:
                params = [torch.nn.Parameter(torch.zeros(1, 1, dtype=dtype, device=place))]
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)
                optimizer = info.optim_cls(params, **given.kwargs)
                if item.error_on == OptimizerErrorEnum.STEP_ERROR:
                    for p in params:
                        p.grad = torch.ones_like(p)
                    optimizer.step()

        pair.raises("error input", lambda: attempt(pair.reference), lambda: attempt(pair.device))


def make_suite(options: dict[str, Any]) -> OptimizerSuite:
    """Called in each worker."""
    return OptimizerSuite(options)


def main(argv: list[str]) -> int:
    """Entry point of the command line; returns the exit code."""
    p = parser("optimizers", "f32", "Runs the optimizer database of the installed torch on the device.")
    return run_suite("optimizers", "conformance.ops.optimizer_suite", finish_options(p, argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
