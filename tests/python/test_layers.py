# SPDX-License-Identifier: Apache-2.0
"""The layers of FLAGOS_DRIVER_LAYERS as Python sees them. What each one finds is tested in C++ and in the catalogue."""

from __future__ import annotations

import json

import pytest
import torch

import torch_fl  # noqa: F401 - registers the device
from helpers import run_ok, run_python
from torch_fl import _C

LAYERS = {"validate", "trace", "leak", "fault", "delay"}


def test_the_known_layers() -> None:
    assert set(_C._known_layers()) == LAYERS


@pytest.mark.parametrize(
    ("layer", "call"),
    [
        ("fault", lambda: _C._arm_fault("copy", 1, "VENDOR_ERROR")),
        ("fault", lambda: _C._disarm_faults()),
        ("fault", lambda: _C._faults_fired()),
        ("fault", lambda: _C._take_call_counts()),
        ("leak", lambda: _C._live_objects()),
        ("validate", lambda: _C._validate_counts()),
    ],
)
def test_a_control_of_a_layer_that_is_off_names_it(layer: str, call: object) -> None:
    if layer in _C._driver_info()["layers"]:
        pytest.skip(f"layer {layer} is on in this run")
    assert callable(call)
    with pytest.raises(NotImplementedError, match=layer):
        call()


@pytest.mark.slow
def test_layers_are_listed_outermost_first() -> None:
    out = run_ok(
        """
        import json, torch, torch_fl
        from torch_fl import _C
        from torch_fl.tools import info
        print(json.dumps([_C._driver_info()["layers"], info.collect()["driver"]["layers"]]))
        """,
        FLAGOS_DRIVER_LAYERS="validate,leak,fault",
    )
    first, second = json.loads(out)
    assert first == second and [layer.split(":")[0] for layer in first] == ["validate", "leak", "fault"]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["nonsense", "validate,,leak", "delay:speed=1", "fault:copy:0:VENDOR_ERROR"])
def test_a_wrong_word_is_an_error_with_the_known_ones(text: str) -> None:
    done = run_python("import torch, torch_fl; torch.ones(1, device='flagos')", FLAGOS_DRIVER_LAYERS=text)
    assert done.returncode == 1 and "FLAGOS_DRIVER_LAYERS" in done.stderr, done.stderr
    if text == "nonsense":
        assert all(layer in done.stderr for layer in LAYERS)


@pytest.mark.slow
def test_controls() -> None:
    out = run_ok(
        """
        import gc, torch, torch_fl
        from torch_fl import _C
        f = torch.flagos
        kinds = lambda: sorted(o["kind"] for o in _C._live_objects())
        x = torch.ones(1 << 20, device="flagos")
        print("memory" in kinds(), all(set(o) == {"kind", "handle", "size", "device", "number"}
                                       for o in _C._live_objects()))
        del x
        f.empty_cache()
        print("memory" in kinds())

        _C._take_call_counts()
        torch.ones(1 << 20, device="flagos")
        print(_C._take_call_counts()["memory_alloc"], _C._take_call_counts().get("memory_alloc", 0))

        f.empty_cache()
        _C._arm_fault("memory_alloc", 1, "VENDOR_ERROR")
        try:
            torch.ones(1 << 20, device="flagos")
        except torch.AcceleratorError as error:
            print("memory_alloc" in str(error), _C._faults_fired())
        _C._disarm_faults()
        print(torch.ones(3, device="flagos").sum().item(), _C._faults_fired())
        print(_C._validate_counts()["accesses"] > 0, _C._validate_counts()["unordered"])
        for entry, status in (("copy", "WRONG"), ("wrong", "VENDOR_ERROR")):
            try:
                _C._arm_fault(entry, 1, status)
            except RuntimeError as error:
                print("wrong" in str(error).lower())
        """,
        FLAGOS_DRIVER_LAYERS="validate,leak,fault",
    )
    assert out.split() == ["True", "True", "False", "1", "0", "True", "1", "3.0", "1", "True", "0", "True", "True"]


@pytest.mark.slow
def test_an_undisturbed_program_runs_under_all_layers(tmp_path: object) -> None:
    """Layers do not change results."""
    trace = f"{tmp_path}/trace.jsonl"
    code = """
        import torch, torch_fl
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).to("flagos")
        optimizer = torch.optim.Adam(model.parameters())
        x = torch.arange(32.0).view(4, 8).to("flagos")
        for _ in range(3):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        print([p.sum().item() for p in model.parameters()])
        """
    plain = run_ok(code)
    layered = run_ok(code, FLAGOS_DRIVER_LAYERS=f"validate,trace:file={trace},leak,fault,delay:seed=3")
    assert layered == plain
    with open(trace) as lines:
        calls = [json.loads(line) for line in lines]
    assert len(calls) > 10 and all(isinstance(call, dict) for call in calls)
    assert torch.flagos.is_available()
