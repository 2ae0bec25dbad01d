# SPDX-License-Identifier: Apache-2.0
"""Programs with one wait that may be left out, run in child processes whose device shows what is missing.

Each case is a function of `wait` that returns whether the values came out right. With the wait it must say "right" in
every mode; without it the mode's device must show the mistake, which proves that the case can fail:

- `lazy`: queued work runs when something waits for it, so a missing wait gives a wrong value;
- `delay`: queued work runs late by a seeded time; nothing can be promised without the wait, so it is only run with it;
- `checked`: layers validate and delay; a missing wait is FLAGOS_UNORDERED, whatever the values are.

This file is both: the module that tests import, and the program of the child.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

MODES: dict[str, dict[str, str]] = {
    "lazy": {"FLAGOS_HOST_QUEUE": "lazy"},
    "delay": {"FLAGOS_DRIVER_LAYERS": "delay:seed=1"},
    "checked": {"FLAGOS_DRIVER_LAYERS": "validate,delay:seed=1"},
}
RIGHT, WRONG, UNORDERED = "right", "wrong", "unordered"
COUNT = 1 << 16  # floats of a tensor: 256 KiB
LARGE = 3 << 20  # floats of a block that shares its segment with no other: 12 MiB


class Case(NamedTuple):
    """One program."""

    run: Callable[[bool], bool]
    late: bool  # without the wait a value is wrong in lazy mode
    watched: bool  # without the wait the checker sees it: both sides of the race are device memory


CASES: dict[str, Case] = {}


def case(late: bool, watched: bool) -> Callable[[Callable[[bool], bool]], Callable[[bool], bool]]:
    def enter(run: Callable[[bool], bool]) -> Callable[[bool], bool]:
        CASES[run.__name__] = Case(run, late, watched)
        return run

    return enter


def outcome(name: str, mode: str, wait: bool) -> str:
    """What the child of this mode said: "right", "wrong", or "unordered: " and the text of the error."""
    return _outcomes(mode)[f"{name} {wait}"]


@functools.cache
def _outcomes(mode: str) -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FLAGOS_") or k == "FLAGOS_DRIVER_PATH"}
    environment.update(MODES[mode], FLAGOS_HOST_DEVICES="2")
    done = subprocess.run(
        [sys.executable, __file__, mode], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"mode {mode}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


# -- the program of the child -----------------------------------------------------------------------------------------


def _main(mode: str) -> None:
    import torch

    import torch_fl  # noqa: F401 - registers the device

    results = {}
    for name, (run, late, watched) in CASES.items():
        for wait in (True, False):
            if not wait and not (late if mode == "lazy" else watched and mode == "checked"):
                continue
            torch.flagos.empty_cache()
            try:
                results[f"{name} {wait}"] = RIGHT if run(wait) else WRONG
            except RuntimeError as error:
                text = " ".join(str(error).split())
                results[f"{name} {wait}"] = f"{UNORDERED}: {text}" if "UNORDERED" in text else f"error: {text}"
            torch.flagos.synchronize()
            torch.flagos.set_stream(torch.flagos.default_stream(0))
    print(json.dumps(results))


def _pinned(value: float, count: int = COUNT):  # noqa: ANN202
    import torch

    return torch.full((count,), float(value)).pin_memory()


def _filled(value: float, count: int = COUNT, device: str = "flagos"):  # noqa: ANN202
    import torch

    return torch.full((count,), float(value), device=device)


def _side():  # noqa: ANN202
    """A stream that is behind all that the current one has done."""
    import torch

    stream = torch.flagos.Stream()
    stream.wait_stream(torch.flagos.current_stream())
    return stream


@case(late=True, watched=True)
def a_stream_waits_for_an_event(wait: bool) -> bool:
    """H1: a copy on one stream, its result used on another."""
    import torch

    f = torch.flagos
    x, source = _filled(0), _pinned(7)
    first, second = _side(), _side()
    with f.stream(first):
        x.copy_(source, non_blocking=True)
        done = first.record_event()
    if wait:
        second.wait_event(done)
    with f.stream(second):
        y = x + 1
    f.synchronize()
    return bool(y.cpu().eq(8).all())


@case(late=True, watched=True)
def an_event_makes_its_own_stream_wait(wait: bool) -> bool:
    """H1: the same with torch's own classes and `Event.wait`."""
    import torch

    x, source = _filled(0), _pinned(7)
    first, second = torch.Stream("flagos"), torch.Stream("flagos")
    done = torch.Event("flagos")
    for stream in (first, second):
        stream.wait_stream(torch.accelerator.current_stream())
    with first:
        x.copy_(source, non_blocking=True)
        done.record(first)
    if wait:
        done.wait(second)
    with second:
        y = x + 1
    torch.accelerator.synchronize()
    return bool(y.cpu().eq(8).all())


@case(late=True, watched=True)
def the_default_stream_waits_for_a_side_stream(wait: bool) -> bool:
    """H4: a copy on a side stream, its result read on the default stream."""
    import torch

    f = torch.flagos
    y, source, side = _filled(0), _pinned(7), _side()
    with f.stream(side):
        y.copy_(source, non_blocking=True)
    if wait:
        f.current_stream().wait_stream(side)
    z = y + 1
    f.synchronize()
    return bool(z.cpu().eq(8).all())


@case(late=False, watched=True)
def the_default_stream_waits_for_a_kernel(wait: bool) -> bool:
    """H4: a product on a side stream. The simulated device computes it at once, so only the checker can tell."""
    import torch

    f = torch.flagos
    big = torch.ones(64, 64, device="flagos")
    side = _side()
    with f.stream(side):
        y = big @ big
    if wait:
        f.current_stream().wait_stream(side)
    z = y + 1
    f.synchronize()
    return bool(z.cpu().eq(65).all())


@case(late=True, watched=True)
def a_side_stream_waits_for_the_default_stream(wait: bool) -> bool:
    """H4, the other way round: the side stream uses what the default stream still copies."""
    import torch

    f = torch.flagos
    x, source, side = _filled(0), _pinned(7), f.Stream()
    f.synchronize()
    x.copy_(source, non_blocking=True)
    if wait:
        side.wait_stream(f.current_stream())
    with f.stream(side):
        y = x * 2
    f.synchronize()
    return bool(y.cpu().eq(14).all())


@case(late=True, watched=True)
def memory_of_a_side_stream_is_recorded(wait: bool) -> bool:
    """H5: freed memory is handed out again while a side stream still reads it."""
    import torch

    f = torch.flagos
    x, target = _filled(7, LARGE), _pinned(0, LARGE)
    side = _side()
    with f.stream(side):
        target.copy_(x, non_blocking=True)
    address = x.data_ptr()
    if wait:
        x.record_stream(side)
    del x
    z = _filled(-1, LARGE)
    reused = z.data_ptr() == address
    f.synchronize()
    assert reused or wait, "the allocator did not hand the block out again, so this case shows nothing"
    return bool(target.eq(7).all())


@case(late=False, watched=True)
def a_kernel_of_a_side_stream_is_recorded(wait: bool) -> bool:
    """H5 as reported: a kernel of the side stream reads it."""
    import torch

    f = torch.flagos
    x = _filled(3, LARGE)
    side = _side()
    with f.stream(side):
        y = x.mul(2)
    if wait:
        x.record_stream(side)
    del x
    _filled(-1, LARGE)
    f.synchronize()
    return bool(y.cpu().eq(6).all())


@case(late=True, watched=False)
def the_host_waits_for_a_copy(wait: bool) -> bool:
    """G3: what a copy that does not block brings is there after a synchronisation."""
    import torch

    value = 7 if wait else 5  # pinned memory of the run before is used again, and may hold its values
    host = _filled(value).to("cpu", non_blocking=True)
    if wait:
        torch.flagos.synchronize()
    return bool(host.eq(value).all())


@case(late=True, watched=False)
def the_host_waits_for_an_event(wait: bool) -> bool:
    """H1: the same with an event, on a side stream."""
    import torch

    x, target, side = _filled(7), _pinned(0), _side()
    with torch.flagos.stream(side):
        target.copy_(x, non_blocking=True)
        done = side.record_event()
    if wait:
        done.synchronize()
    return bool(target.eq(7).all())


@case(late=True, watched=False)
def the_host_leaves_pinned_memory_alone(wait: bool) -> bool:
    """G4: the source of a copy that does not block is read when the stream gets there."""
    import torch

    x, source = _filled(0), _pinned(7)
    x.copy_(source, non_blocking=True)
    if wait:
        torch.flagos.current_stream().synchronize()
    source.fill_(9)
    return bool(x.cpu().eq(7).all())


@case(late=True, watched=True)
def a_device_waits_for_another(wait: bool) -> bool:
    """H7: what one device still receives is copied to the other."""
    import torch

    f = torch.flagos
    x, y, source = _filled(0), _filled(0, device="flagos:1"), _pinned(7)
    f.synchronize(0), f.synchronize(1)
    side = _side()
    with f.stream(side):
        x.copy_(source, non_blocking=True)
        done = side.record_event()
    other = f.Stream("flagos:1")
    other.wait_stream(f.current_stream(1))
    if wait:
        other.wait_event(done)
    with f.stream(other):
        y.copy_(x, non_blocking=True)
    f.synchronize(1), f.synchronize(0)
    return bool(y.cpu().eq(7).all())


@case(late=False, watched=True)
def gradients_are_ready_on_the_stream_of_backward(wait: bool) -> bool:
    """Autograd joins the forward's streams with the stream that backward() was called on, and with no other."""
    import torch

    f = torch.flagos
    w = torch.ones(64, device="flagos", requires_grad=True)
    side = _side()
    with f.stream(side):
        (w * 3).sum().backward()
    if wait:
        f.current_stream().wait_stream(side)
    g = w.grad + 1
    f.synchronize()
    return bool(g.cpu().eq(4).all())


# Right without any wait of the program: in every mode "right", and there is nothing to leave out.


@case(late=False, watched=False)
def pageable_memory_is_read_at_once(wait: bool) -> bool:
    """The source of a copy from ordinary memory may change as soon as the call returns."""
    import torch

    x, source = _filled(0), torch.full((COUNT,), 7.0)
    x.copy_(source, non_blocking=True)
    source.fill_(9)
    return bool(x.cpu().eq(7).all())


@case(late=False, watched=False)
def pinned_memory_may_be_freed_at_once(wait: bool) -> bool:
    """Its allocator hands it out again only when the copy has read it."""
    import torch

    x = _filled(0)
    torch.flagos.synchronize()
    x.copy_(_pinned(7), non_blocking=True)
    others = [_pinned(9) for _ in range(3)]
    return bool(x.cpu().eq(7).all()) and len(others) == 3


@case(late=False, watched=False)
def one_stream_is_in_order(wait: bool) -> bool:
    """A copy, kernels behind it, a copy back: no wait but the last."""
    import torch

    x, source, target = _filled(0), _pinned(7), _pinned(0)
    x.copy_(source, non_blocking=True)
    y = (x + 1).mul_(2)
    target.copy_(y, non_blocking=True)
    torch.flagos.current_stream().synchronize()
    return bool(target.eq(16).all())


@case(late=False, watched=False)
def an_operator_follows_its_operand(wait: bool) -> bool:
    """H7: it runs in the stream of its operand's device, whichever device is current."""
    import torch

    x = _filled(0, device="flagos:1")
    torch.flagos.synchronize(1)
    x.copy_(_pinned(7), non_blocking=True)
    y = x + 1
    torch.flagos.synchronize(1)
    return torch.flagos.current_device() == 0 and bool(y.cpu().eq(8).all())


@case(late=False, watched=False)
def a_blocking_copy_waits(wait: bool) -> bool:
    """`cpu()`, `item()` and comparison with the host wait for the stream they run on."""
    import torch

    x = _filled(0)
    x.copy_(_pinned(7), non_blocking=True)
    first = x[0].item() == 7
    x.copy_(_pinned(8), non_blocking=True)
    second = x.tolist()[-1] == 8
    x.copy_(_pinned(9), non_blocking=True)
    third = bool(torch.equal(x, torch.full_like(x, 9)))
    return first and second and third and bool(x.cpu().eq(9).all())


if __name__ == "__main__":
    _main(sys.argv[1])
