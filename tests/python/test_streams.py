# SPDX-License-Identifier: Apache-2.0
"""torch.flagos: streams and events, against what torch.cuda documents for the same names.

What happens when a wait is missing is in tests/catalogue/test_h_streams.py.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import torch_fl  # noqa: F401 - registers the device
from helpers import D, run_ok
from torch_fl import _C

f = torch.flagos


def test_current_and_default_stream() -> None:
    assert isinstance(f.current_stream(), f.Stream) and isinstance(f.current_stream(), torch.Stream)
    assert f.current_stream() == f.default_stream() == torch.accelerator.current_stream()
    assert hash(f.current_stream()) == hash(f.default_stream())
    assert f.Stream() != f.default_stream()


def test_stream_context() -> None:
    s = f.Stream()
    with f.stream(s) as entered:
        assert entered is s and f.current_stream() == s
        with f.stream(None):
            assert f.current_stream() == s
    assert f.current_stream() == f.default_stream()
    with s:  # torch's own protocol
        assert f.current_stream() == s
    assert f.current_stream() == f.default_stream()


def test_stream_context_of_another_device(two_devices: None) -> None:
    """As in torch.cuda, the stream's device is current inside, and both devices get their streams back."""
    outer, inner = f.Stream(0), f.Stream("flagos:1")
    with f.stream(outer):
        with f.stream(inner):
            assert f.current_device() == 1 and f.current_stream() == inner and f.current_stream(0) == outer
        assert f.current_device() == 0 and f.current_stream() == outer
        assert f.current_stream(1) == f.default_stream(1)
    assert f.current_stream() == f.default_stream()


def test_set_stream() -> None:
    s = f.Stream(priority=-1)
    f.set_stream(None)
    f.set_stream(s)
    assert torch.accelerator.current_stream() == s
    f._set_stream_by_id(0, 0, s.device_type)
    assert f.current_stream() == f.default_stream()


def test_work_on_a_side_stream() -> None:
    s = f.Stream()
    x = torch.arange(1000.0, device=D)
    s.wait_stream(f.current_stream())
    with f.stream(s):
        y = x * 2
        done = s.record_event()
    f.current_stream().wait_event(done)
    assert isinstance(done, f.Event)
    s.synchronize()
    assert s.query() and done.query()
    assert torch.equal(y.cpu(), torch.arange(1000.0) * 2)


def test_event_times() -> None:
    start, end = f.Event(enable_timing=True), f.Event(enable_timing=True)
    assert start.query()
    start.record()
    x = torch.ones(512, 512, device=D)
    x @ x
    end.record(f.current_stream())
    end.synchronize()
    assert end.query() and start.elapsed_time(end) > 0
    untimed = f.Event()
    untimed.record()
    with pytest.raises((RuntimeError, ValueError)):
        untimed.elapsed_time(end)


def test_events_that_are_not_offered() -> None:
    with pytest.raises(NotImplementedError, match="interprocess"):
        f.Event(interprocess=True)


def test_external_stream() -> None:
    s = f.Stream()
    if "stream_wrap" in _C._driver_info()["missing_entries"]:
        with pytest.raises(NotImplementedError, match="cannot wrap streams"):
            f.ExternalStream(s.native_handle)
        return
    external = f.ExternalStream(s.native_handle)
    assert external.native_handle == s.native_handle and external.device == s.device
    with f.stream(external):
        assert (torch.ones(3, device=D) + 1).sum().item() == 6


def test_event_is_one_of_torchs() -> None:
    """torch's own streams and events take ours and the reverse."""
    ours, theirs = f.Event(enable_timing=True), torch.Event(D, enable_timing=True)
    assert isinstance(ours, f.Event) and isinstance(ours, torch.Event) and isinstance(theirs, f.Event)
    ours.record()
    theirs.record()
    theirs.synchronize()
    assert ours.elapsed_time(theirs) >= 0
    plain, mine = torch.Stream(D), f.Stream()
    plain.wait_event(ours)
    plain.wait_stream(mine)
    mine.wait_event(theirs)
    mine.wait_stream(plain)


@pytest.mark.parametrize("wait", ["stream", "event", "device", "accelerator"])
def test_every_way_to_wait_for_a_copy(wait: str) -> None:
    source = torch.arange(1 << 16, dtype=torch.float32, device=D)
    target = torch.empty(1 << 16).pin_memory()
    s = f.Stream()
    s.wait_stream(f.current_stream())
    with f.stream(s):
        target.copy_(source, non_blocking=True)
        done = s.record_event()
    if wait == "stream":
        s.synchronize()
    elif wait == "event":
        done.synchronize()
    elif wait == "device":
        f.synchronize()
    else:
        torch.accelerator.synchronize()
    assert s.query() and done.query()
    assert torch.equal(target, torch.arange(1 << 16, dtype=torch.float32))


@pytest.mark.parametrize("device", [None, 0, "flagos:0", torch.device("flagos:0"), torch.device("flagos")])
def test_synchronize_takes_every_name_of_a_device(device: object) -> None:
    f.synchronize(device)


def test_priorities() -> None:
    least, greatest = f.Stream.priority_range()
    assert least >= greatest
    assert f.default_stream().priority in range(greatest, least + 1)
    for wanted in (-100, greatest, 0, least, 100):
        assert f.Stream(priority=wanted).priority == min(max(wanted, greatest), least)
    if greatest < least:
        assert f.Stream(priority=greatest) != f.Stream(priority=least)


def test_streams_of_the_pool_come_round() -> None:
    """A process has a bounded number of them, so a program may ask for one in each step."""
    ids = [f.Stream().stream_id for _ in range(64)]
    assert len(set(ids)) == 32 and ids[:32] == ids[32:]
    assert f.default_stream().stream_id not in ids


def test_a_negative_device_means_the_current_one(two_devices: None) -> None:
    with f.device(1):
        assert f.Stream(-1).device == torch.device("flagos:1")


def test_the_current_stream_is_of_the_thread() -> None:
    with f.stream(f.Stream()) as s, ThreadPoolExecutor(1) as pool:
        assert pool.submit(f.current_stream).result() == f.default_stream()
        assert f.current_stream() == s


@pytest.mark.parametrize("side", [False, True])
def test_backward_runs_on_the_stream_of_the_forward(side: bool) -> None:
    seen = []

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            seen.append(f.current_stream())
            return x * 2

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            seen.append(f.current_stream())
            return grad * 2

    x = torch.ones(4, device=D, requires_grad=True)
    s = f.Stream() if side else f.default_stream()
    s.wait_stream(f.current_stream())
    with f.stream(s):
        y = Probe.apply(x).sum()
    f.current_stream().wait_stream(s)
    y.backward()
    assert seen == [s, s]
    assert x.grad.tolist() == [2.0] * 4


def test_a_stream_waits_for_an_event_of_another_device(two_devices: None) -> None:
    source = torch.arange(1 << 16, dtype=torch.float32).pin_memory()
    first, second = f.Stream("flagos:0"), f.Stream("flagos:1")
    x = torch.empty(1 << 16, device="flagos:0")
    y = torch.empty(1 << 16, device="flagos:1")
    first.wait_stream(f.current_stream(0))
    with f.stream(first):
        x.copy_(source, non_blocking=True)
        done = first.record_event()
    second.wait_event(done)
    second.wait_stream(f.current_stream(1))
    with f.stream(second):
        y.copy_(x, non_blocking=True)
    second.synchronize()
    assert torch.equal(y.cpu(), source)
    assert f.current_device() == 0


def test_get_stream_from_external() -> None:
    if "stream_wrap" in _C._driver_info()["missing_entries"]:
        pytest.skip("the driver cannot wrap streams")
    s = f.Stream()
    assert f.get_stream_from_external(s.native_handle, 0).native_handle == s.native_handle


def test_record_stream_refuses_a_stream_of_another_kind() -> None:
    x = torch.ones(4, device=D)
    x.record_stream(f.Stream())
    with pytest.raises((RuntimeError, TypeError)):
        x.record_stream(torch.Stream("cpu"))


def test_an_event_may_die_while_its_work_is_pending() -> None:
    x, source = torch.empty(1 << 20, device=D), torch.ones(1 << 20).pin_memory()
    s = f.Stream()
    s.wait_stream(f.current_stream())
    with f.stream(s):
        x.copy_(source, non_blocking=True)
        s.record_event()
    s.synchronize()
    assert x.cpu().eq(1).all()


@pytest.mark.slow
def test_work_is_pending_until_somebody_waits() -> None:
    """H1: query() is false while work is pending, and the times between events are those of the device."""
    out = run_ok(
        """
        import torch, torch_fl
        f = torch.flagos
        source = torch.arange(4096.0).pin_memory()
        x = torch.zeros(4096, device="flagos")
        s = f.Stream()
        s.wait_stream(f.current_stream())
        start, end = f.Event(enable_timing=True), f.Event(enable_timing=True)
        with f.stream(s):
            start.record()
            x.copy_(source, non_blocking=True)
            y = x + 1
            end.record()
        print(end.query())
        end.synchronize()
        print(end.query(), start.elapsed_time(end) > 0, torch.equal(y.cpu(), source + 1), s.query())
        with f.stream(s):
            x.copy_(source, non_blocking=True)
        print(s.query())
        s.synchronize()
        print(s.query())
        """,
        FLAGOS_HOST_QUEUE="lazy",
    )
    assert out.split() == ["False", "True", "True", "True", "True", "False", "True"]
