# SPDX-License-Identifier: Apache-2.0
"""The child of test_faults.py: a training step in which every driver call fails once, each in its turn.

Prints one JSON object: `trials`, a list of what happened, and `counts`, the driver calls of an undisturbed step.
"""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from typing import Any

import torch

import torch_fl  # noqa: F401 - registers the device
from torch_fl import _C

f = torch.flagos
STATUSES = {"memory_alloc": ("VENDOR_ERROR", "OUT_OF_MEMORY"), "host_alloc": ("VENDOR_ERROR", "OUT_OF_MEMORY")}
MOST_CALLS = 2000  # of one entry in one step; a bound for the loop


def step() -> list[torch.Tensor]:
    """One step of SGD and one of Adam on a small network; the input comes by a copy on a side stream."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).to("flagos")
    pinned = torch.linspace(-1, 1, 8 * 16).view(8, 16).pin_memory()
    loading = f.Stream()
    for optimizer in (torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(model.parameters(), lr=0.1)):
        with f.stream(loading):
            x = pinned.to("flagos", non_blocking=True)
            loaded = loading.record_event()
        f.current_stream().wait_event(loaded)
        x.record_stream(f.current_stream())
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        del x
    results = [p.detach().to("cpu", non_blocking=True) for p in model.parameters()]
    f.synchronize()
    del model, optimizer, pinned
    f.empty_cache()
    f.empty_host_cache()
    return results


def clear() -> None:
    gc.collect()
    f.synchronize()
    f.empty_cache()
    f.empty_host_cache()


def live() -> dict[str, int]:
    """Objects of the driver that are alive. Streams and events are kept for reuse, so only a bound holds for them."""
    return dict(Counter(o["kind"] for o in _C._live_objects()))


def same(results: list[torch.Tensor], reference: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(results, reference, strict=True))


def trial(entry: str, status: str, nth: int, reference: list[torch.Tensor]) -> dict[str, Any]:
    """The step with one failing call, then an undisturbed one."""
    report: dict[str, Any] = {"entry": entry, "status": status, "nth": nth, "error": None, "live before": live()}
    before = _C._faults_fired()
    _C._arm_fault(entry, nth, status)
    try:
        report["right"] = same(step(), reference)
    except Exception as error:  # noqa: BLE001 - the report is what is judged
        report["error"] = f"{type(error).__name__}: {error}"
    _C._disarm_faults()
    report["fired"] = _C._faults_fired() - before
    f.set_stream(f.default_stream())
    clear()
    report["right afterwards"] = same(step(), reference)
    clear()
    report["live after"] = live()
    return report


def cold_trials() -> list[dict[str, Any]]:
    """Streams are made once in a process, so their making can only fail in the first steps."""
    trials = []
    for nth in range(1, 10):
        before = _C._faults_fired()
        _C._arm_fault("stream_create", nth, "VENDOR_ERROR")
        error = None
        try:
            step()
        except Exception as raised:  # noqa: BLE001 - as above
            error = f"{type(raised).__name__}: {raised}"
        trials.append({"nth": nth, "fired": _C._faults_fired() - before, "error": error})
        _C._disarm_faults()
        f.set_stream(f.default_stream())
        if not trials[-1]["fired"]:
            break
    return trials


def main() -> None:
    assert f.device_count() > 0  # loads the driver, and with it the layers
    cold = cold_trials()
    for _ in range(33):  # every stream of the pool exists from here on
        reference = step()
    clear()
    gc.freeze()  # what torch itself made would be walked in every collection
    baseline = live()
    _C._take_call_counts()
    assert same(step(), reference)
    counts = {entry: count for entry, count in _C._take_call_counts().items() if count}
    clear()
    assert {k: v for k, v in live().items() if k != "event"} == {k: v for k, v in baseline.items() if k != "event"}
    trials = []
    for entry in sorted(counts):
        for status in STATUSES.get(entry, ("VENDOR_ERROR",)):
            for nth in range(1, MOST_CALLS):
                trials.append(trial(entry, status, nth, reference))
                if not trials[-1]["fired"]:
                    break
    print(json.dumps({"counts": counts, "cold": cold, "trials": trials, "checks": _C._validate_counts()}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
