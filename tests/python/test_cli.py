# SPDX-License-Identifier: Apache-2.0
"""What a user reads: the `torch-fl` command, counters and their table."""

from __future__ import annotations

import io
import json
import subprocess

import pytest
import torch

import torch_fl
from helpers import D, run_python
from torch_fl import _compat
from torch_fl.tools import variables

# Every test starts processes of its own, which import torch anew.
pytestmark = pytest.mark.slow


def torch_fl_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command as its console script does."""
    code = (
        f"import sys\nsys.argv = ['/somewhere/bin/torch-fl', *{list(arguments)!r}]\n"
        "from torch_fl.tools.cli import main\nsys.exit(main())"
    )
    return run_python(code, **environment)


def test_info_shows_the_device() -> None:
    done = torch_fl_command("info", FLAGOS_HOST_DEVICES="2", FLAGOS_FALBACK="error")
    assert done.returncode == 0, done.stderr
    for text in (torch.__version__, torch_fl.__version__, "flagos:0", "flagos:1", "torch.accelerator", "registered"):
        assert text in done.stdout, text
    flagged = [line for line in done.stdout.splitlines() if "UNKNOWN" in line]
    assert len(flagged) == 1 and "FLAGOS_FALBACK=error" in flagged[0]


def test_info_json() -> None:
    done = torch_fl_command("info", "--json", FLAGOS_DRIVER="host", FLAGOS_HOST_DEVICES="2")
    facts = json.loads(done.stdout)
    assert done.returncode == 0 and facts["registered"]
    assert facts["driver"]["name"] == "host" and "host" in facts["available drivers"]
    assert [device["index"] for device in facts["devices"]] == [0, 1]
    assert all(device["total_memory"] >= device["free_memory"] > 0 for device in facts["devices"])
    assert facts["routed operators"] > 1000
    assert {patch["name"] for patch in facts["patches"]} == {
        *(f"torch.nn.parallel.comm.{name}" for name in ("broadcast", "broadcast_coalesced", "scatter", "gather")),
        "torch.multiprocessing.reductions.reduce_storage",
    }
    assert len(facts["changes in torch"]) >= 4
    assert {v["name"]: v["meaning"] is not None for v in facts["variables"] if v["name"] != "FLAGOS_DRIVER_PATH"} == {
        "FLAGOS_DRIVER": True,
        "FLAGOS_HOST_DEVICES": True,
    }


def test_info_without_a_device_says_why() -> None:
    done = torch_fl_command("info", FLAGOS_HOST_DEVICES="0")
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("devices"))
    assert "none" in line and "FLAGOS_HOST_DEVICES" in line


def test_info_of_a_bad_driver_says_why() -> None:
    """U2: the command that explains a failure comes up although the driver does not."""
    done = torch_fl_command("info", FLAGOS_DRIVER="nosuchdriver")
    assert "Traceback" not in done.stderr
    assert "NOT LOADED" in done.stdout and "nosuchdriver" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["info", "--help"], ["conformance", "--help"], ["bench", "--help"], ["bench", "host", "-h"]],
)
def test_help(arguments: list[str]) -> None:
    done = torch_fl_command(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: torch-fl")


@pytest.mark.parametrize("suite", ["ops", "modules", "optimizers", "foreach"])
def test_conformance_is_found(suite: str) -> None:
    done = torch_fl_command("conformance", suite, "--help")
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout


@pytest.mark.parametrize("arguments", [[], ["nope"], ["conformance", "nope"], ["bench"], ["info", "--nope"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    done = torch_fl_command(*arguments)
    assert done.returncode == 2
    assert "usage: torch-fl" in done.stderr and "Traceback" not in done.stderr


def test_failure_is_one_line_and_exit_code_1() -> None:
    done = torch_fl_command("bench", "host", FLAGOS_HOST_DEVICES="0")
    assert done.returncode == 1
    assert "FLAGOS_HOST_DEVICES" in done.stderr.strip().splitlines()[-1] and "Traceback" not in done.stderr


def test_unknown_variables_are_told_from_known_ones() -> None:
    environment = {
        "FLAGOS_DRIVER": "x",
        "FLAGOS_ACME_TILE": "4",
        "FLAGOS_HOST_MEMROY": "1G",
        "FLAGOS_X": "1",
        "HOME": "/",
    }
    found = {name: meaning for name, _, meaning in variables.active(["host", "acme"], environment)}
    assert set(found) == set(environment) - {"HOME"}
    assert found["FLAGOS_DRIVER"] and found["FLAGOS_ACME_TILE"] == "option of driver acme"
    assert found["FLAGOS_HOST_MEMROY"] is None and found["FLAGOS_X"] is None


@pytest.mark.slow
def test_bench_writes_its_record(tmp_path) -> None:
    """The figures are never judged here, only that all of them are there."""
    record = tmp_path / "host.json"
    quick = ["--only", "ops", "--slices", "4", "--slice-ms", "0.01", "--json", str(record)]
    done = torch_fl_command("bench", "host", *quick)
    assert done.returncode == 0, done.stderr
    data = json.loads(record.read_text())
    assert len(data["ops"]) == 28 and {row["kind"] for row in data["ops"].values()} == {"compute", "view"}
    assert all(row["flagos"]["min"] > 0 and "added_median" in row for row in data["ops"].values())
    assert data["machine"]["torch"] == torch.__version__ and data["options"]["slices"] == 4
    assert data["fallback_calls"] == 0


def rows(op: str) -> dict[str, dict]:
    return {row["route"]: row for row in torch_fl.counters() if row["op"] == op}


def test_counters_count_calls() -> None:
    x = torch.ones(3, device=D)
    torch_fl.reset_counters()
    for _ in range(5):
        torch.add(x, x)
    assert rows("aten::add.Tensor")["alias"]["calls"] == 5
    assert rows("aten::add.Tensor")["alias"]["host_ns"] == 0
    torch_fl.reset_counters()
    assert rows("aten::add.Tensor") == {}


def test_timing_measures_inside_its_block_only() -> None:
    x = torch.ones(3, device=D)
    torch_fl.reset_counters()
    with torch_fl.timing():
        torch.mul(x, x)
    measured = rows("aten::mul.Tensor")["alias"]["host_ns"]
    assert measured > 0
    torch.mul(x, x)
    assert rows("aten::mul.Tensor")["alias"] == {**rows("aten::mul.Tensor")["alias"], "calls": 2, "host_ns": measured}


def test_summary_without_a_terminal(forced_cpu: None) -> None:
    x = torch.ones(16, device=D)
    torch_fl.reset_counters()
    torch.exp(x)
    for _ in range(3):
        torch.add(x, x)
    text = io.StringIO()
    torch_fl.summary(text, width=100)
    lines = text.getvalue().splitlines()
    assert next(i for i, s in enumerate(lines) if "aten::add.Tensor" in s) < next(
        i for i, s in enumerate(lines) if "aten::exp" in s
    )
    assert any(s.startswith("CPU fallbacks: 4 calls of 2 operators") for s in lines)
    assert any(s.startswith("flagos:0: peak memory") for s in lines)
    assert "\x1b" not in text.getvalue()


def test_summary_limit_and_order() -> None:
    x = torch.ones(4, device=D)
    big = torch.ones(256, 256, device=D)
    torch_fl.reset_counters()
    with torch_fl.timing():
        torch.mm(big, big)
        for _ in range(3):
            torch.relu(x)
    for by, first in (("calls", "aten::relu"), ("time", "aten::mm")):
        text = io.StringIO()
        torch_fl.summary(text, by=by, limit=1, width=100)  # type: ignore[arg-type]
        assert first in text.getvalue() and "more rows" in text.getvalue(), by
    with pytest.raises(ValueError, match="'size'.*'calls', 'time'"):
        torch_fl.summary(by="size")  # type: ignore[arg-type]


def test_patches_are_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compat, "_applied", [])
    patch = _compat.Patch("torch.something", "2.11", "a gap")
    _compat.record(patch)
    _compat.record(patch)
    assert _compat.patches() == [patch]


def test_policy_words() -> None:
    before = torch_fl.get_fallback_policy()
    for word in ("allow", "error", "warn"):
        torch_fl.set_fallback_policy(word)
        assert torch_fl.get_fallback_policy() == word
    torch_fl.set_fallback_policy(before)
    with pytest.raises(ValueError, match="'never'.*'allow', 'warn', 'error'"):
        torch_fl.set_fallback_policy("never")
    with pytest.raises(ValueError, match="namespace::name"):
        torch_fl.keep_on_cpu("add")
    with pytest.raises(ValueError, match="count from 0"):
        torch_fl.keep_on_cpu("a::b", [0, -1])


def test_registered_ops() -> None:
    ops = torch_fl.get_registered_ops()
    assert ops == sorted(ops)
    assert {"aten::add.Tensor", "aten::mm", "aten::_foreach_add_.List", "aten::_softmax"} <= set(ops)


def test_a_suite_runs_in_worker_processes() -> None:
    """Spawned workers carry the tool's sys.argv; they must register flagos all the same."""
    done = torch_fl_command("conformance", "foreach", "--ops", "_foreach_neg", "--dtypes", "f32")
    assert done.returncode == 0, done.stderr
    assert "1 agree, 0 differ, 0 error" in done.stdout
