# SPDX-License-Identifier: Apache-2.0
"""The conformance suites must be able to fail: planted faults are seen, crashes and hangs are isolated.

Planted on a CPU-against-CPU run, so that these tests judge the suite and nothing else.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parents[2]
if str(REPOSITORY) not in sys.path:
    sys.path.insert(0, str(REPOSITORY))

pytest.importorskip("expecttest", reason="torch's databases need it")

from conformance.ops import entry  # noqa: E402
from conformance.ops.compare import Comparer  # noqa: E402
from conformance.ops.expectations import Expectations, version_matches  # noqa: E402
from conformance.ops.move import Mover  # noqa: E402
from conformance.ops.pair import Pair  # noqa: E402
from conformance.ops.pool import Pool  # noqa: E402
from conformance.ops.result import AGREE, DIFFER, ERROR, SKIPPED, EntryResult, Totals  # noqa: E402
from conformance.ops.run import State, apply_expectation  # noqa: E402

# Every test starts processes of its own, which import torch anew.
pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def silent(_: str) -> None:
    """A beacon that nobody watches."""


def op_info(name: str) -> Any:
    """A copy of the database entry that a test may damage."""
    from torch.testing._internal.common_methods_invocations import op_db

    return copy.copy(next(op for op in op_db if op.full_name == name))


def damaged(real: Callable, damage: Callable) -> Callable:
    """`real`, but on the device side `damage(result, *arguments)` is what comes back."""

    def planted(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        return damage(result, *args) if entry.current_side() == "device" else result

    return planted


def run(op: Any, dtype: torch.dtype = torch.float32, **rules: Any) -> EntryResult:
    """Runs a few samples of the entry, CPU against CPU."""
    setting = entry.Setting(CPU, CPU, samples=6)
    return entry.EntryRunner(op, dtype, setting, entry.Rules(**rules), silent).run()


def kinds(result: EntryResult) -> set[str]:
    """Kinds of the failed checks."""
    return {f.kind for f in result.failures}


def test_an_undamaged_entry_agrees_in_every_form() -> None:
    result = run(op_info("add"))
    assert result.status == AGREE and result.samples == 6 and not result.failures
    forms = {"forward", "backward", "grad", "in_place", "in_place_grad", "out", "out_resized", "out_non_contiguous"}
    assert forms | {"non_contiguous", "non_contiguous_grad", "non_contiguous_in_place"} == set(result.checks)


def raise_value_error(*_: Any) -> Any:
    raise ValueError("planted")


def first_changed(result: torch.Tensor, *_: Any) -> torch.Tensor:
    return result.detach().clone().add_(1e-3).requires_grad_(result.requires_grad)


def expanded(result: torch.Tensor, *_: Any) -> torch.Tensor:
    spread = torch.stack([result, result], -1)[..., 0]
    return spread if result.numel() else result


PLANTS: dict[str, tuple[Callable, str, str]] = {
    "wrong value": (first_changed, DIFFER, "values differ"),
    "wrong stride": (expanded, DIFFER, "stride"),
    "wrong dtype": (lambda r, *_: r.double(), DIFFER, "dtype"),
    "wrong device": (lambda r, *_: r.to("meta"), DIFFER, "on meta instead of cpu"),
    "wrong shape": (lambda r, *_: r.unsqueeze(0), DIFFER, "shape"),
    "wrong type": (lambda r, *_: [r], DIFFER, "list instead of a tensor"),
    "argument returned": (lambda r, a, *_: a.detach().copy_(r.detach()) if a.shape == r.shape else r, DIFFER, ""),
    "no gradient": (lambda r, *_: r.detach(), DIFFER, "requires_grad False instead of True"),
    "raises": (raise_value_error, ERROR, "ValueError: planted"),
}


@pytest.mark.parametrize("name", PLANTS)
def test_planted_forward_faults_are_seen(name: str) -> None:
    damage, status, text = PLANTS[name]
    op = op_info("add")
    op.op = damaged(op.op, damage)
    result = run(op)
    assert result.status == status
    assert any(text in f.line for f in result.failures), result.failures
    totals = Totals.of([result])
    assert totals.by_status[status] == 1 and not totals.good()
    if name == "wrong device":
        assert totals.stats["wrong_device"] > 0
        assert "devices: 0" not in "\n".join(totals.lines("ops"))


class WrongGrad(torch.autograd.Function):
    """Identity whose gradient is damaged: `how` is what the backward does to it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, how: Callable) -> torch.Tensor:
        ctx.how = how
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return ctx.how(grad), None


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (lambda g: g * 2, "values differ"),
        (lambda g: None, "NoneType instead of Tensor"),
        (raise_value_error, "ValueError: planted"),
    ],
    ids=["wrong", "missing", "raising"],
)
def test_planted_gradient_faults_are_seen(how: Callable, text: str) -> None:
    op = op_info("sin")
    op.op = damaged(op.op, lambda r, *_: WrongGrad.apply(r, how) if r.requires_grad else r)
    result = run(op)
    assert result.status in (DIFFER, ERROR)
    assert "forward" not in kinds(result)
    lines = [f.line for f in result.failures if f.kind in ("backward", "backward grad")]
    assert lines
    if "NoneType" in text:
        assert all("grad[0]" in line for line in lines)
    else:
        assert any(text in line for line in lines)


def test_planted_in_place_faults_are_seen() -> None:
    for damage, text in (
        (lambda r, *_: r.clone(), "False"),
        (lambda r, *_: r.mul_(2), ""),
        (lambda r, *_: (r.data.mul_(2), None)[1], ""),
    ):
        op = op_info("add")
        op.inplace_variant = damaged(op.inplace_variant, damage)
        result = run(op)
        assert result.status == DIFFER
        assert kinds(result) <= {"in_place", "non_contiguous_in_place"}
        assert any(text in f.line for f in result.failures)


def test_planted_out_faults_are_seen() -> None:
    op = op_info("add")
    real = op.op

    def forgets_out(*args: Any, out: torch.Tensor | None = None, **kwargs: Any) -> Any:
        if out is None or entry.current_side() == "reference":
            return real(*args, out=out, **kwargs) if out is not None else real(*args, **kwargs)
        return real(*args, **kwargs)  # computes, but leaves out= alone

    op.op = forgets_out
    result = run(op)
    assert result.status == DIFFER and kinds(result) == {"out", "out_resized", "out_non_contiguous"}


def test_a_changed_input_is_seen() -> None:
    op = op_info("sin")
    op.op = damaged(op.op, lambda r, a, *_: (a.detach().zero_(), r)[1])
    result = run(op)
    assert result.status == DIFFER
    assert any("_version" in f.line or "after the call" in f.line for f in result.failures)


def test_a_missing_error_is_seen() -> None:
    op = op_info("gather")
    assert run(op).stats["errors_checked"] > 0
    real = op.op

    def lenient(*args: Any, **kwargs: Any) -> Any:
        try:
            return real(*args, **kwargs)
        except Exception:
            if entry.current_side() == "reference":
                raise
            return None

    op.op = lenient
    result = run(op)
    assert "error input" in kinds(result)
    assert any("did not raise" in f.line for f in result.failures)


def test_a_reference_that_always_raises_is_skipped_not_agreed() -> None:
    op = op_info("sin")

    def only_on_device(*args: Any, **kwargs: Any) -> Any:
        if entry.current_side() == "reference":
            raise RuntimeError("no reference")
        return torch.sin(*args, **kwargs)

    op.op = only_on_device
    op.error_inputs_func = None
    result = run(op)
    assert result.status == SKIPPED and result.samples == 0
    assert result.stats["reference_raised"] == result.stats["no_raise"] > 0


def test_uninitialised_results_compare_metadata_only() -> None:
    op = op_info("zeros_like")
    op.op = damaged(op.op, lambda r, *_: r.fill_(1))
    assert run(op).status == DIFFER
    assert run(op, metadata_only=True).status == AGREE
    op.op = damaged(torch.zeros_like, lambda r, *_: r.double())
    assert run(op, metadata_only=True).status == DIFFER


def test_a_copy_keeps_strides_offsets_bits_and_sharing() -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    view, spread = base.t()[1:, ::2], torch.ones(3, 1).expand(3, 5)
    conj = torch.randn(3, dtype=torch.complex64).conj()
    sparse = torch.eye(3).to_sparse()
    grad = torch.ones(2, requires_grad=True)
    tree = ([base, view, spread], {"c": conj, "n": conj.imag, "s": sparse, "r": sparse.to_sparse_csr()}, base, grad)
    done = Mover(CPU, CPU)(tree)
    assert Comparer(CPU, CPU).compare(tree, done) is None
    assert done[2] is done[0][0] and done[0][0] is not base
    assert done[0][1].untyped_storage()._cdata == done[0][0].untyped_storage()._cdata
    assert done[0][1].storage_offset() == view.storage_offset() and done[0][2].stride() == (1, 0)
    assert done[1]["c"].is_conj() and done[1]["n"].is_neg() and done[3].requires_grad
    done[0][0].zero_()
    assert base.sum() == 276


@pytest.mark.parametrize("name", ["nn.Linear", "nn.LSTM"])
def test_planted_module_faults_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from conformance.ops.module_suite import run_module
    from torch.testing._internal.common_modules import module_db

    info = next(i for i in module_db if i.name == name)
    clean = Pair(CPU, CPU, entry.Rules(), silent)
    run_module(info, "f32", clean, samples=2)
    assert clean.finish().status == AGREE and clean.result.samples == 4

    def double_first(result: Any, *_: Any) -> Any:
        return result * 2 if isinstance(result, torch.Tensor) else (result[0] * 2, *result[1:])

    monkeypatch.setattr(info.module_cls, "forward", damaged(info.module_cls.forward, double_first))
    pair = Pair(CPU, CPU, entry.Rules(), silent)
    run_module(info, "f32", pair, samples=2)
    assert {"train_forward", "eval_forward"} <= kinds(pair.finish()) and pair.result.status == DIFFER


def test_planted_optimizer_faults_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from conformance.ops.optimizer_suite import run_optimizer
    from torch.testing._internal.common_optimizers import optim_db

    info = next(i for i in optim_db if i.name == "SGD")
    clean = Pair(CPU, CPU, entry.Rules(), silent)
    run_optimizer(info, "foreach", "f32", clean, samples=2)
    assert clean.finish().status == AGREE and clean.result.samples == 2

    def nudge(result: Any, optimizer: Any, *_: Any) -> Any:
        with torch.no_grad():
            optimizer.param_groups[0]["params"][0].add_(1e-3)
        return result

    monkeypatch.setattr(info.optim_cls, "step", damaged(info.optim_cls.step, nudge))
    pair = Pair(CPU, CPU, entry.Rules(), silent)
    run_optimizer(info, "foreach", "f32", pair, samples=2)
    assert pair.finish().status == DIFFER and "parameters" in kinds(pair.result)


def test_expected_differences_are_strict() -> None:
    rule = {"op": "add", "reason": "known"}
    bad = EntryResult(key="add f32", samples=1)
    bad.fail(0, "forward", "differs")
    assert apply_expectation(bad, rule, strict=True).status == SKIPPED and "known" in bad.expected
    good = EntryResult(key="add f32", samples=1)
    assert apply_expectation(good, rule, strict=False).status == AGREE
    assert apply_expectation(good, rule, strict=True).status == DIFFER


def test_expectation_files() -> None:
    data = {"skip": [{"op": "add|mul", "dtype": "f.*", "torch": ">=2.10,<3.0", "reason": "r"}]}
    rules = Expectations(data, "flagos", "cpu", "2.11.0+cpu")
    assert rules.find("skip", "add", "f32") and not rules.find("skip", "addmm", "f32")
    assert not rules.find("skip", "add", "i64") and not rules.find("expect", "add", "f32")
    assert not Expectations(data, "flagos", "cpu", "3.0.0").find("skip", "add", "f32")
    assert version_matches("==2.11", "2.11.1") and not version_matches("<2.11", "2.11.0")
    for wrong in ({"skip": [{"op": "x"}]}, {"skp": []}, {"skip": [{"op": "x", "reason": "r", "dtyp": "f32"}]}):
        with pytest.raises(ValueError):
            Expectations(wrong, "flagos", "cpu")
    for suite in ("ops", "modules", "optimizers", "foreach"):
        Expectations.load(suite, "flagos", "cpu")


class PlantedSuite:
    """Entries that end their worker, hang, or fail inside the suite."""

    def keys(self) -> list[str]:
        return ["good 1", "crash 1", "hang 1", "bug 1", "good 2"]

    def run(self, key: str, beacon: Callable[[str], None]) -> EntryResult:
        beacon(f"sample 3 of {key}")
        what = key.split(" ")[0]
        if what == "crash":
            os.abort()
        if what == "hang":
            time.sleep(600)
        if what == "bug":
            raise KeyError("planted")
        return EntryResult(key=key, samples=1)


def make_suite(options: dict[str, Any]) -> PlantedSuite:
    """Called in each worker of the next test."""
    return PlantedSuite()


@pytest.mark.slow
def test_crashes_and_hangs_cost_one_entry_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    pool = Pool("test_conformance_suite", {}, jobs=1, deadline=60)
    results: dict[str, EntryResult] = {}
    try:
        keys = pool.keys()
        pool._limit = 8

        def done(result: EntryResult) -> None:
            results[result.key] = result
            pool._limit = 8 if result.key == "crash 1" else 60

        pool._limit = 60
        pool.run(keys, done)
    finally:
        pool.close()
    assert {k: r.status for k, r in results.items()} == {
        "good 1": AGREE, "crash 1": ERROR, "hang 1": ERROR, "bug 1": ERROR, "good 2": AGREE,
    }  # fmt: skip
    assert "SIGABRT" in results["crash 1"].failures[0].line
    assert "sample 3 of crash 1" in results["crash 1"].failures[0].line
    assert "no result after" in results["hang 1"].failures[0].line
    assert "planted" in results["bug 1"].failures[0].line


def test_a_state_file_survives_being_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    state = State(path, {"run": 1})
    for i in range(3):
        result = EntryResult(key=f"e{i}", samples=i + 1)
        if i == 1:
            result.fail(0, "forward", "differs")
        state.add(result)
    state.close()
    path.write_text(path.read_text()[:-10])
    again = State(path, {"run": 1})
    assert list(again.known) == ["e0", "e1"] and again.known["e1"].failures[0].line == "differs"
    again.add(EntryResult(key="e2"))
    again.close()
    assert list(State(path, {"run": 1}).known) == ["e0", "e1", "e2"]
    assert not State(path, {"run": 2}).known


@pytest.mark.slow
def test_command_line(tmp_path: Path) -> None:
    record, state = tmp_path / "out" / "record.json", tmp_path / "state.jsonl"
    command = [
        sys.executable,
        "-m",
        "conformance.ops.op_suite",
        "--device",
        "cpu",
        "--ops",
        "^(sin|empty|jiterator_unary)$",
    ]
    command += ["--dtypes", "f32,i64", "--samples", "2", "--jobs", "1", "--json", str(record), "--resume", str(state)]
    for _ in range(2):  # the second run takes everything from the state file
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        last = done.stdout.splitlines()[-2:]
        assert last == ["samples: 6 compared", "ops: 6 entries, 4 agree, 0 differ, 0 error, 2 skipped"]
    data = json.loads(record.read_text())
    assert data["entries"]["all"] == 6 and data["samples"] == 6 and data["good"] is True
    assert data["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert len(state.read_text().splitlines()) == 7
