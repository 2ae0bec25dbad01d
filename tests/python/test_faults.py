# SPDX-License-Identifier: Apache-2.0
"""Every driver call of a training step fails once: no crash, no leak, no wrong result, and the error names the call."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from helpers import run_ok

pytestmark = pytest.mark.slow

LAYERS = "validate,leak,fault"
PROGRAM = Path(__file__).with_name("fault_program.py")
# Calls whose failure nobody need be told of: they give something back, or answer a question with a safe default.
SILENT = {"event_destroy", "pointer_info"}
# Calls that something else can stand in for: memory after the cache was given back, a wait for the stream in place of
# an event that an allocator records behind freed memory.
RECOVERS = {"memory_alloc", "host_alloc", "event_create", "event_record", "event_query"}


@functools.cache
def report(queue: str) -> dict[str, Any]:
    code = f"import runpy; runpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
    out = run_ok(code, timeout=280, FLAGOS_DRIVER_LAYERS=LAYERS, FLAGOS_HOST_QUEUE=queue)
    return json.loads(out.splitlines()[-1])


@pytest.fixture(params=["eager", "lazy"])
def trials(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return report(request.param)["trials"]


def summary(found: list[dict[str, Any]]) -> str:
    return "\n".join(json.dumps(t) for t in found[:8])


def test_the_step_calls_what_it_should() -> None:
    """The test is about these entries; a step that stopped calling them would prove nothing."""
    for queue in ("eager", "lazy"):
        counts = report(queue)["counts"]
        assert {"memory_alloc", "memory_free", "copy", "event_record", "stream_wait", "device_sync"} <= set(counts)


def test_every_call_of_the_step_failed_once(trials: list[dict[str, Any]]) -> None:
    last = {}
    for t in trials:
        if t["fired"]:
            last[t["entry"]] = t["nth"]
        else:
            assert t["error"] is None and t["right"], f"no fault, and yet: {summary([t])}"
    never = {t["entry"] for t in trials} - set(last)
    assert not never, f"the fault never fired in {never}"


def test_an_error_names_the_call(trials: list[dict[str, Any]]) -> None:
    nameless = [t for t in trials if t["error"] is not None and t["entry"] not in t["error"]]
    assert not nameless, summary(nameless)


def test_a_step_without_an_error_is_right(trials: list[dict[str, Any]]) -> None:
    """It recovered, as from memory that was there after the cache was given back, or the call was not needed."""
    wrong = [t for t in trials if t["error"] is None and not t["right"]]
    assert not wrong, summary(wrong)


def test_no_error_is_swallowed(trials: list[dict[str, Any]]) -> None:
    quiet = [t for t in trials if t["fired"] and t["error"] is None]
    swallowed = [t for t in quiet if t["entry"] not in SILENT | RECOVERS]
    assert not swallowed, summary(swallowed)
    raised = {t["entry"] for t in trials if t["error"] is not None}
    never = {t["entry"] for t in trials} - raised - SILENT - {"event_create", "event_query"}
    assert not never, f"no call of {never} ever raised"


def test_the_step_after_a_fault_is_right(trials: list[dict[str, Any]]) -> None:
    wrong = [t for t in trials if not t["right afterwards"]]
    assert not wrong, summary(wrong)


def test_nothing_leaks(trials: list[dict[str, Any]]) -> None:
    """What is alive is as before the fault: what the driver refused to take back is offered again.

    Streams and events are kept for reuse: the pool of streams was full before, and events have a bound.
    """
    leaked = []
    for t in trials:
        for kind in ("memory", "host_memory", "host_registration", "stream", "reservation", "mapping"):
            if t["live after"].get(kind, 0) > t["live before"].get(kind, 0):
                leaked.append(t)
    assert not leaked, summary(leaked)
    assert max(t["live after"].get("event", 0) for t in trials) <= 16


@pytest.mark.parametrize("queue", ["eager", "lazy"])
def test_a_stream_that_cannot_be_made(queue: str) -> None:
    *failed, last = report(queue)["cold"]
    assert failed and all(t["fired"] and "stream_create" in t["error"] for t in failed), failed
    assert not last["fired"] and last["error"] is None, last


@pytest.mark.parametrize("queue", ["eager", "lazy"])
def test_the_checker_had_nothing_to_say(queue: str) -> None:
    checks = report(queue)["checks"]
    assert checks["accesses"] > 0 and checks["unordered"] == 0 and checks["misuses"] == 0, checks
