# SPDX-License-Identifier: Apache-2.0
"""The runner of the driver suite, and that the suite sees planted faults."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from conformance import driver_suite as suite  # noqa: E402

RULE = {"test": "Area.*", "reason": "because", "date": "2026-11-30"}


def expectations(data: dict, **environment: str) -> suite.Expectations:
    return suite.Expectations(data, environment)


def verdict(status: str, text: str, kind: str | None) -> str:
    rule = suite.Rule(kind, "Area.*", "because", "2026-11-30") if kind else None
    return suite.judge(suite.Result("Area.Test", status, text), rule).verdict


@pytest.mark.parametrize(
    ("status", "text", "kind", "wanted"),
    [
        ("passed", "", None, "passed"),
        ("passed", "", "unsupported", "wrong"),
        ("passed", "", "expected_failure", "wrong"),
        ("skipped", "unsupported: stream_wrap", "unsupported", "unsupported"),
        ("skipped", "unsupported: stream_wrap", None, "wrong"),
        ("skipped", "unsupported: stream_wrap", "expected_failure", "wrong"),
        ("skipped", "no time", "unsupported", "wrong"),
        ("failed", "x", None, "wrong"),
        ("failed", "x", "unsupported", "wrong"),
        ("failed", "x", "expected_failure", "expected failure"),
        ("crashed", "x", "expected_failure", "expected failure"),
        ("hung", "x", None, "wrong"),
    ],
)
def test_verdicts_are_strict(status: str, text: str, kind: str | None, wanted: str) -> None:
    assert verdict(status, text, kind) == wanted


def test_the_first_rule_that_holds_counts() -> None:
    both = {"unsupported": [{**RULE, "when": {"X": "a|b"}}], "expected_failure": [RULE]}
    assert expectations(both, X="b").find("Area.Test").kind == "unsupported"
    assert expectations(both, X="bc").find("Area.Test").kind == "expected_failure"
    assert expectations(both).find("Other.Test") is None
    assert expectations({"unsupported": [{**RULE, "when": {"X": ""}}]}).find("Area.Test") is not None


def test_environment_is_a_default() -> None:
    data = {"environment": {"A": "1", "B": "1"}}
    assert expectations(data, B="2").environment == {"A": "1", "B": "2"}


@pytest.mark.parametrize(
    "data",
    [
        {"unknown": []},
        {"unsupported": [{"test": "x", "reason": "y"}]},
        {"expected_failure": [{"test": "x", "reason": "", "date": "2026-11-30"}]},
        {"unsupported": [{**RULE, "driver": "host"}]},
    ],
)
def test_a_file_that_is_not_understood_is_refused(data: dict) -> None:
    with pytest.raises(ValueError, match="expectations"):
        expectations(data)


def test_every_expectation_file_is_understood() -> None:
    files = list(suite.EXPECTATIONS.glob("*.toml"))
    assert {"host.toml", "null.toml"} <= {file.name for file in files}
    for file in files:
        suite.Expectations.load(file.stem, {})


def test_names_of_drivers() -> None:
    assert suite.driver_name("host") == "host"
    assert suite.driver_name("/x/libtorch_fl_driver_mine.so") == "mine"
    assert suite.driver_name("./libother.so") == "libother"


FAKE = """#!{python}
import json, os, sys
names = ["A.Passes", "A.Crashes", "A.Skips", "A.Hangs", "B.Fails"]
if "--describe" in sys.argv:
    print(json.dumps(dict(name="fake", implementation="x", layers=[], missing_entries=["stream_wrap"], devices=["d"])))
    sys.exit(0)
if "--gtest_list_tests" in sys.argv:
    print("A.\\n  Passes\\n  Crashes\\n  Skips\\n  Hangs\\nB.\\n  Fails")
    sys.exit(0)
chosen = next(a for a in sys.argv if a.startswith("--gtest_filter=")).split("=", 1)[1].split(":")
out = open(sys.argv[sys.argv.index("--results") + 1], "a")
for name in (n for n in names if n in chosen):
    print(json.dumps(dict(test=name, status="started", text="")), file=out, flush=True)
    if name == "A.Crashes":
        print("the last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), 11)
    if name == "A.Hangs":
        sys.exit(97)
    status, text = dict(P=("passed", ""), S=("skipped", "unsupported: x"), F=("failed", "f.cc:1: no"))[name[2]]
    print(json.dumps(dict(test=name, status=status, text=text)), file=out, flush=True)
sys.exit(1 if "B.Fails" in chosen else 0)
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    program = tmp_path / "program"
    program.write_text(FAKE.replace("{python}", sys.executable), encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_a_crash_and_a_hang_lose_one_test_each(fake: Path) -> None:
    run = suite.Run(fake, "fake", {})
    names = run.tests("*")
    assert names == ["A.Passes", "A.Crashes", "A.Skips", "A.Hangs", "B.Fails"]
    run.run(names)
    assert {r.test: r.status for r in run.results} == {
        "A.Passes": "passed",
        "A.Crashes": "crashed",
        "A.Skips": "skipped",
        "A.Hangs": "hung",
        "B.Fails": "failed",
    }
    crashed = next(r for r in run.results if r.status == "crashed")
    assert "-11" in crashed.text and "the last words" in crashed.text


def test_the_record_and_the_exit_code(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "expectations"
    folder.mkdir()
    monkeypatch.setattr(suite, "EXPECTATIONS", folder)
    record = tmp_path / "record.json"
    arguments = ["--driver", "fake", "--program", str(fake), "--json", str(record)]
    assert suite.main(arguments) == 1
    assert json.loads(record.read_text())["tests"]["wrong"] == 4

    listed = '[[{}]]\ntest = {}\nreason = "r"\ndate = "2026-11-30"\n'
    known = listed.format("unsupported", '"A.Skips"') + listed.format(
        "expected_failure", '["A.Crashes", "A.Hangs", "B.*"]'
    )
    (folder / "fake.toml").write_text(known, encoding="utf-8")
    assert suite.main(arguments) == 0
    found = json.loads(record.read_text())
    assert found["good"] and found["tests"] == {
        "all": 5,
        "passed": 1,
        "unsupported": 1,
        "expected_failure": 3,
        "wrong": 0,
    }
    assert found["missing_entries"] == {"stream_wrap": "external streams are refused"}

    (folder / "fake.toml").write_text(known + listed.format("unsupported", '"A.Gone"'), encoding="utf-8")
    assert suite.main(arguments) == 1
    assert "A.Gone: no such test" in capsys.readouterr().out


# ---- The real program

try:
    PROGRAM = suite.find_program()
except RuntimeError:
    PROGRAM = None
built = pytest.mark.skipif(PROGRAM is None, reason="torch_fl_driver_suite is not built")


@built
@pytest.mark.slow
@pytest.mark.parametrize("queue", ["eager", "lazy"])
@pytest.mark.parametrize("layers", ["", "validate,delay"])
def test_host_passes(queue: str, layers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLAGOS_HOST_DEVICES", "FLAGOS_DRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FLAGOS_HOST_QUEUE", queue)
    assert suite.main(["--driver", "host", "--layers", layers]) == 0


@built
def test_null_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main(["--driver", "null"]) == 0
    printed = capsys.readouterr().out
    assert "stream_wrap" in printed and "external streams are refused" in printed


@built
def test_a_driver_that_cannot_be_loaded_is_no_crash(capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main(["--driver", "no_such_driver"]) == 2
    assert "no such driver" in capsys.readouterr().err


# conformance/driver/faulty: what is planted, and a test that must see it.
CAUGHT_BY = {
    "drop_wait": "Waits.AcrossStreams",
    "events_are_complete": "Events.PendingUntilTheStreamGetsThere",
    "stream_sync_does_nothing": "CopyTiming.APinnedTargetIsWrittenAtExecution",
    "device_sync_does_nothing": "Devices.SyncCoversAllStreams",
    "copy_loses_a_byte": "Kinds/Copies.EverySize/HostToDevicePinnedOnAStream",
    "copy_ignores_stream": "CopyTiming.APinnedSourceIsReadAtExecution",
    "copy_swaps_sides": "Ordering.PingPongBetweenDevices",
    "fill_ignores_errors": "Fills.AreRefused",
    "alloc_on_current_device": "Memory.ABlockHoldsItsBytes",
    "alloc_unaligned": "Memory.EveryBlockIsAligned",
    "free_accepts_all": "Memory.FreeTwice",
    "event_destroy_leaks": "Handles.DestroyedEvent",
    "record_only_once": "Events.RecordingAgainMovesThem",
    "host_func_at_once": "HostFunctions.RunOffTheCallersThread",
    "info_ignores_size": "Devices.InfoWritesNothingBeyondTheCallersStruct",
    "one_error_for_all": "LastError.IsFreshInANewThread",
    "elapsed_backwards": "Elapsed.IsNotNegativeAndAddsUp",
    "hangs_in_sync": "Events.RecordOnAnIdleStream",
    "crashes_in_range": "Priorities.Range",
}


@built
@pytest.mark.slow
def test_a_driver_that_hangs_at_exit_is_seen() -> None:
    assert PROGRAM is not None
    faulty = PROGRAM.with_name("libtorch_fl_driver_faulty.so")
    environment = suite.Expectations.load("faulty", {"FLAGOS_FAULTY_BUG": "exit_hangs"}).environment
    run = suite.Run(PROGRAM, str(faulty), environment, timeout=3)
    run.run(["Table.Names"])
    assert [(r.test, r.status) for r in run.results] == [("Table.Names", "passed"), ("Process.End", "hung")]


@built
@pytest.mark.slow
@pytest.mark.parametrize("bug", CAUGHT_BY)
def test_a_planted_fault_is_seen(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PROGRAM is not None
    faulty = PROGRAM.with_name("libtorch_fl_driver_faulty.so")
    monkeypatch.setenv("FLAGOS_FAULTY_BUG", bug)
    environment = suite.Expectations.load("faulty", {"FLAGOS_FAULTY_BUG": bug}).environment
    run = suite.Run(PROGRAM, str(faulty), environment, timeout=5)
    run.run([CAUGHT_BY[bug]])
    assert run.results[0].status in ("failed", "crashed", "hung"), run.results
