# SPDX-License-Identifier: Apache-2.0
"""Group H: streams, events, asynchronous correctness. docs/streams.md says what programs may rely on."""

from __future__ import annotations

import inspect

import pytest
import torch

import ordering
import torch_fl  # noqa: F401 - registers the device
from helpers import D
from ordering import CASES, MODES, RIGHT, UNORDERED, WRONG

f = torch.flagos

WITH = [(name, mode) for name in CASES for mode in MODES]
WITHOUT = [(name, "lazy") for name, case in CASES.items() if case.late]
WITHOUT += [(name, "checked") for name, case in CASES.items() if case.watched]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode"), WITH)
def test_H1_H4_H5_with_its_wait_a_program_is_right(name: str, mode: str) -> None:
    assert ordering.outcome(name, mode, wait=True) == RIGHT


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode"), WITHOUT)
def test_H1_H4_H5_without_its_wait_the_mistake_shows(name: str, mode: str) -> None:
    """Proves that the test above can fail."""
    said = ordering.outcome(name, mode, wait=False)
    assert said.startswith(WRONG if mode == "lazy" else UNORDERED), said


@pytest.mark.slow
def test_H4_the_error_names_both_operators() -> None:
    said = ordering.outcome("the_default_stream_waits_for_a_kernel", "checked", wait=False)
    assert "aten::mm" in said and "aten::add" in said, said


def test_every_case_of_a_missing_wait_is_shown_by_some_mode() -> None:
    waits = {name for name, case in CASES.items() if "if wait" in inspect.getsource(case.run)}
    assert waits == {name for name, _ in WITHOUT}


@pytest.mark.parametrize("index", [0, 1])
def test_H2_an_event_records_the_accelerators_stream(two_devices: None, index: int) -> None:
    f.set_device(index)
    for event in (f.Event(), torch.Event(D), torch.Event()):
        event.record(torch.accelerator.current_stream())
        event.synchronize()
        assert event.query() and event.device == torch.device("flagos", index)
        torch.accelerator.current_stream().wait_event(event)
    other = torch.accelerator.current_stream(1 - index)
    event = torch.Event(D)
    event.record(other)
    assert event.device == other.device and f.current_device() == index


@pytest.mark.parametrize("current", [0, 1])
def test_H7_operators_run_on_the_device_of_their_operand(two_devices: None, current: int) -> None:
    """The current device is another one, and so is its stream."""
    f.set_device(current)
    there = torch.device("flagos", 1 - current)
    here_before, there_before = f.memory_allocated(current), f.memory_allocated(there)
    with f.stream(f.Stream(current)):
        x = torch.ones(1000, device=there).add_(1)
        y = torch.nn.functional.linear(x.view(10, 100), torch.ones(5, 100, device=there))
        z = torch.cat([y, y]).sort(dim=0).values
        x.copy_(torch.full((1000,), 3.0).pin_memory(), non_blocking=True)
        assert f.current_device() == current and f.current_stream().device.index == current
    assert x.device == y.device == z.device == there
    assert z.cpu().eq(200).all() and x.cpu().eq(3).all()
    assert f.memory_allocated(current) == here_before and f.memory_allocated(there) > there_before
    f.synchronize(there)
    assert f.current_device() == current


def test_H8_questions_leave_the_current_device(two_devices: None) -> None:
    a = torch.accelerator
    questions = [
        f.get_device_properties, f.get_device_name, f.get_device_capability, f.mem_get_info, f.memory_stats,
        f.memory_allocated, f.max_memory_reserved, f.memory_summary, f.current_stream, f.default_stream,
        f.get_rng_state, f.reset_peak_memory_stats, f.reset_accumulated_memory_stats,
        f.get_per_process_memory_fraction, f.synchronize, f.Stream, a.current_stream, a.synchronize,
        a.get_memory_info, a.memory_stats, a.memory_allocated, a.max_memory_reserved, a.reset_peak_memory_stats,
        a.get_device_capability,
    ]  # fmt: skip
    for current in range(f.device_count()):
        f.set_device(current)
        for index in range(f.device_count()):
            for ask in questions:
                ask(index)
                assert f.current_device() == a.current_device_index() == current, ask
            f.can_device_access_peer(index, current)
            assert f.current_device() == current
        for wrong in (f.device_count(), f.device_count() + 5):
            for ask in questions:
                with pytest.raises((RuntimeError, AssertionError, ValueError)):
                    ask(wrong)
                assert f.current_device() == current, ask
