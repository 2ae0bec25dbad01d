# SPDX-License-Identifier: Apache-2.0
"""Copies that the device's queue does: pinned memory with non_blocking, and between devices. Values against the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from helpers import D, run_ok
from torch_fl import _C

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda t: t,
    "transposed": lambda t: t.t(),
    "strided": lambda t: t[::2, 1:],
    "expanded": lambda t: t[:1].expand(4, t.size(1)),
    "conjugated": lambda t: t.conj(),
}
DTYPES = (torch.float32, torch.int64, torch.bfloat16, torch.complex64)


def copies() -> tuple[int, int, int]:
    """(host to device, device to host, device to device) copies so far."""
    counters = _C._runtime_counters()
    return counters["copies_h2d"], counters["copies_d2h"], counters["copies_d2d"]


def sample(dtype: torch.dtype) -> torch.Tensor:
    """4 by 6, different values everywhere."""
    values = torch.arange(24.0).reshape(4, 6) - 7.5
    return torch.complex(values, values.flip(0)) if dtype.is_complex else values.to(dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("source", "target"), [*itertools.product(DTYPES, (torch.float32, torch.complex64))], ids=str)
def test_pinned_copies_in_both_directions(source: torch.dtype, target: torch.dtype, layout: str) -> None:
    host = LAYOUTS[layout](sample(source).pin_memory())
    expected = torch.empty(host.shape, dtype=target).copy_(host)
    before = copies()
    there = torch.empty(host.shape, dtype=target, device=D)
    there.copy_(host, non_blocking=True)
    torch.flagos.synchronize()
    assert torch.equal(there.cpu(), expected)
    device_side = LAYOUTS[layout](sample(source).to(D))
    back = torch.empty(host.shape, dtype=target, pin_memory=True)
    back.copy_(device_side, non_blocking=True)
    torch.flagos.synchronize()
    assert torch.equal(back, expected)
    after = copies()
    assert after[0] > before[0] and after[1] > before[1], "the queue did none of it"


@pytest.mark.parametrize("layout", ("dense", "strided"))
def test_destination_need_not_be_dense(layout: str) -> None:
    host = torch.randn(4, 6).pin_memory()
    for target in (torch.zeros(8, 12, device=D), torch.zeros(8, 12).pin_memory()):
        view = target[::2, ::2] if layout == "strided" else target[:4, :6]
        source = host if target.device.type == "flagos" else host.to(D)
        view.copy_(source, non_blocking=True)
        torch.flagos.synchronize()
        assert torch.equal(view.cpu(), host)
        assert int(target.cpu().count_nonzero()) == 24, "bytes beside the view changed"


def test_blocking_and_pageable_copies_need_no_queue() -> None:
    before = copies()
    x = torch.randn(64).to(D)
    x.copy_(torch.randn(64), non_blocking=True)
    x.cpu()
    x.to("cpu", non_blocking=False)
    assert copies() == before


def test_gradients_pass_an_asynchronous_copy() -> None:
    host = torch.randn(5).pin_memory().requires_grad_()
    (host.to(D, non_blocking=True) * 2).sum().backward()
    assert host.grad is not None and torch.equal(host.grad, torch.full((5,), 2.0))


def test_versions_count_once() -> None:
    x = torch.zeros(4, device=D)
    version = x._version
    x.copy_(torch.ones(4).pin_memory(), non_blocking=True)
    assert x._version == version + 1


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_between_devices(layout: str) -> None:
    source = LAYOUTS[layout](sample(torch.complex64).to("flagos:1"))
    for non_blocking in (False, True):
        moved = source.to("flagos:0", non_blocking=non_blocking)
        assert moved.device.index == 0
        torch.flagos.synchronize()
        assert torch.equal(moved.cpu(), LAYOUTS[layout](sample(torch.complex64)))


@pytest.mark.parametrize("dtype", (torch.int32, torch.float64), ids=str)
def test_shapes_that_do_not_fit_are_refused_as_on_the_cpu(dtype: torch.dtype) -> None:
    host = torch.zeros(3, dtype=dtype).pin_memory()
    with pytest.raises(RuntimeError, match="expand|size"):
        torch.empty(4, 4, device=D).copy_(host, non_blocking=True)


LAZY = {"FLAGOS_HOST_QUEUE": "lazy", "FLAGOS_HOST_DEVICES": "2"}
PRELUDE = "import torch, torch_fl\nD = 'flagos'\n"


@pytest.mark.slow
def test_non_blocking_really_does_not_block() -> None:
    run_ok(
        PRELUDE
        + """
host = torch.full((1000,), 3.0).pin_memory()
x = torch.zeros(1000, device=D)
torch.flagos.synchronize()
x.copy_(host, non_blocking=True)
event = torch.Event(D)
event.record()
host.fill_(4.0)  # read when the queue gets there, as on a GPU
assert not event.query(), "the copy ran inside the call"
event.synchronize()
assert x[0].item() == 4.0

pageable = torch.full((1000,), 5.0)
x.copy_(pageable, non_blocking=True)
pageable.fill_(6.0)  # read inside the call
assert x[0].item() == 5.0
""",
        **LAZY,
    )


@pytest.mark.slow
def test_a_freed_pinned_block_is_not_reused_while_a_copy_reads_it() -> None:
    run_ok(
        PRELUDE
        + """
x = torch.zeros(256, device=D)
torch.flagos.synchronize()
host = torch.full((256,), 1.0).pin_memory()
address = host.data_ptr()
x.copy_(host, non_blocking=True)
del host
other = torch.full((256,), 2.0).pin_memory()
assert other.data_ptr() != address, "the block is still read by the queue"
assert (x == 1).all().item()
""",
        **LAZY,
    )


@pytest.mark.slow
@pytest.mark.parametrize("non_blocking", (False, True))
def test_copies_between_devices_follow_both_streams(non_blocking: bool) -> None:
    run_ok(
        PRELUDE
        + f"""
host = torch.full((512,), 7.0).pin_memory()
a = torch.zeros(512, device="flagos:0")
b = torch.zeros(512, device="flagos:1")
torch.flagos.synchronize(0), torch.flagos.synchronize(1)
a.copy_(host, non_blocking=True)        # pending on flagos:0
b.copy_(a, non_blocking={non_blocking})  # must come after it
a.fill_(9.0)                             # must come after that
assert (b == 7).all().item()
assert (a == 9).all().item()
""",
        **LAZY,
    )


@pytest.mark.slow
def test_item_and_cpu_wait_for_the_stream() -> None:
    run_ok(
        PRELUDE
        + """
host = torch.arange(6.0).pin_memory()
x = torch.zeros(6, device=D)
for read in (lambda: x[3].item(), lambda: x.cpu()[3].item(), lambda: x.tolist()[3], lambda: x.nonzero().size(0) - 2):
    x.zero_()
    torch.flagos.synchronize()
    x.copy_(host, non_blocking=True)
    assert read() == 3.0
    assert torch.accelerator.current_stream().query(), "a read that hands values to the host waits for its stream"
""",
        **LAZY,
    )
