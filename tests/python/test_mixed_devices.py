# SPDX-License-Identifier: Apache-2.0
"""Tensors of different devices in one call: refused with torch's own words, but for what CUDA accepts too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from helpers import D, same

SAME_DEVICE = "Expected all tensors to be on the same device"
Call = Callable[[torch.Tensor, torch.Tensor], object]

# x is a 4x4 tensor on flagos, c one on the CPU; both float32.
REFUSED: dict[str, Call] = {
    "add": lambda x, c: x + c,
    "add, CPU first": lambda x, c: c + x,
    "add_": lambda x, c: x.add_(c),
    "cpu.add_": lambda x, c: c.add_(x),
    "cpu.add_ of a 0-dim device tensor": lambda x, c: c.add_(x.sum()),
    "mm": lambda x, c: x.mm(c),
    "mm, CPU first": lambda x, c: c.mm(x),
    "bmm": lambda x, c: torch.bmm(x[None], c[None]),
    "addmm with a CPU bias": lambda x, c: torch.addmm(c, x, x),
    "cat": lambda x, c: torch.cat([x, c]),
    "cat, CPU first": lambda x, c: torch.cat([c, x]),
    "stack": lambda x, c: torch.stack([x, c]),
    "linear with a CPU weight": lambda x, c: F.linear(x, c),
    "linear with a CPU bias": lambda x, c: F.linear(x, x, c[0]),
    "linear with a CPU input": lambda x, c: F.linear(c, x),
    "layer_norm with a CPU weight": lambda x, c: F.layer_norm(x, (4,), c[0], c[0]),
    "batch_norm with CPU statistics": lambda x, c: F.batch_norm(x, c[0], c[0].abs()),
    "conv2d with a CPU weight": lambda x, c: F.conv2d(x[None, None], c[None, None]),
    "add with out= on the CPU": lambda x, c: torch.add(x, x, out=c),
    "add of CPU tensors with out= on the device": lambda x, c: torch.add(c, c, out=x),
    "mm with out= on the CPU": lambda x, c: torch.mm(x, x, out=c),
    "where with a CPU condition": lambda x, c: torch.where(c > 0, x, x),
    "embedding with a CPU index": lambda x, c: F.embedding(torch.tensor([0, 2]), x),
    "embedding with a CPU weight": lambda x, c: F.embedding(torch.tensor([0, 2], device=D), c),
    "index_select with a CPU index": lambda x, c: x.index_select(0, torch.tensor([0, 2])),
    "gather with a CPU index": lambda x, c: x.gather(0, torch.zeros(4, 4, dtype=torch.int64)),
    "scatter_ with a CPU index": lambda x, c: x.scatter_(0, torch.zeros(4, 4, dtype=torch.int64), x.clone()),
    "cross_entropy with a CPU target": lambda x, c: F.cross_entropy(x, torch.tensor([0, 1, 2, 3])),
    "mse_loss with a CPU target": lambda x, c: F.mse_loss(x, c),
    "lerp with a CPU end": lambda x, c: x.lerp(c, 0.5),
    "addcmul": lambda x, c: torch.addcmul(x, x, c),
    "foreach add": lambda x, c: torch._foreach_add([x, x], [x, c]),
    "foreach add_": lambda x, c: torch._foreach_add_([x.clone()], [c]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_cpu_tensor_beside_device_tensors_is_refused(name: str) -> None:
    x, c = torch.randn(4, 4, device=D), torch.randn(4, 4)
    x_before, c_before = x.cpu(), c.clone()
    with pytest.raises(RuntimeError, match=SAME_DEVICE):
        REFUSED[name](x, c)
    assert torch.equal(c, c_before), "the refused call wrote into its CPU operand"
    assert torch.equal(x.cpu(), x_before), "the refused call wrote into its device operand"


def test_masked_fill_with_a_cpu_mask_is_refused() -> None:
    x = torch.randn(4, 4, device=D)
    with pytest.raises(RuntimeError, match="same device"):
        x.masked_fill_(torch.ones(4, 4, dtype=torch.bool), 0.0)


def test_the_error_names_both_devices() -> None:
    with pytest.raises(RuntimeError, match=r"flagos:0(.|\n)*cpu|cpu(.|\n)*flagos:0"):
        torch.ones(3, device=D) + torch.ones(3)


@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: a + b,
        lambda a, b: a.mm(b),
        lambda a, b: torch.cat([a, b]),
        lambda a, b: a.add_(b),
        lambda a, b: F.linear(a, b),
        lambda a, b: torch.add(a, a, out=b),
        lambda a, b: a + b.sum(),  # only a CPU scalar may be on another device
        lambda a, b: F.cross_entropy(a, torch.zeros(4, dtype=torch.int64, device=b.device)),
    ],
    ids=["add", "mm", "cat", "add_", "linear", "out", "0-dim", "cross_entropy"],
)
def test_two_device_indices_in_one_call_are_refused(call: Call, two_devices: None) -> None:
    a, b = torch.randn(4, 4, device="flagos:0"), torch.randn(4, 4, device="flagos:1")
    with pytest.raises(RuntimeError, match=SAME_DEVICE) as raised:
        call(a, b)
    assert "flagos:0" in str(raised.value) and "flagos:1" in str(raised.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, s: x + s,
        lambda x, s: s + x,
        lambda x, s: s - x,
        lambda x, s: x * s,
        lambda x, s: s / x,
        lambda x, s: torch.where(x > 0, x, s),
        lambda x, s: torch.where(x > 0, s, x),
        lambda x, s: torch.maximum(x, s),
        lambda x, s: x > s,
        lambda x, s: x.clone().mul_(s),
        lambda x, s: x.pow(s),
        lambda x, s: s.pow(x),
        lambda x, s: torch.addcdiv(x, x, s),
        lambda x, s: x.lerp(x + 1, s),
        lambda x, s: x.clone().fill_(s),
        lambda x, s: x.masked_fill(x > 0, s),
        lambda x, s: torch._foreach_mul([x, x + 1], s)[1],
    ],
)
def test_a_0_dim_cpu_tensor_counts_as_a_number(call: Call) -> None:
    c, s = torch.rand(4, 4) + 0.5, torch.tensor(1.5)
    same(call(c.to(D), s), call(c, s))


def test_a_0_dim_cpu_tensor_keeps_the_promotion_rules() -> None:
    x = torch.ones(3, device=D, dtype=torch.float16)
    assert (x + torch.tensor(1.0, dtype=torch.float64)).dtype == torch.float16
    assert (torch.tensor(1.0, dtype=torch.float64) + x).dtype == torch.float16
    assert (torch.ones(3, device=D, dtype=torch.int64) * torch.tensor(0.5)).dtype == torch.float32


def test_cpu_indices_are_accepted_where_cuda_accepts_them() -> None:
    c = torch.randn(5, 4)
    x = c.to(D)
    index, mask = torch.tensor([3, 0, 3]), torch.tensor([True, False, True, True, False])
    same(x[index], c[index])
    same(x[mask], c[mask])
    same(x[:, index], c[:, index])
    same(x[index, index.flip(0)], c[index, index.flip(0)])
    assert index.device.type == "cpu" and mask.device.type == "cpu"

    for accumulate in (False, True):
        a, b = x.clone(), c.clone()
        values = torch.arange(12.0).view(3, 4)
        # Without accumulation a repeated index may keep either value.
        rows = index if accumulate else torch.tensor([3, 0, 1])
        a.index_put_((rows,), values.to(D), accumulate=accumulate)
        b.index_put_((rows,), values, accumulate=accumulate)
        same(a, b)

    a, b = x.clone(), c.clone()
    a[mask] = 7.0
    b[mask] = 7.0
    same(a, b)
    a[index] = torch.tensor(5.0)  # a 0-dim CPU value
    b[index] = torch.tensor(5.0)
    same(a, b)


def test_index_put_refuses_cpu_values() -> None:
    x = torch.zeros(4, device=D)
    with pytest.raises(RuntimeError):
        x.index_put_((torch.tensor([0, 1], device=D),), torch.ones(2))


def test_cpu_tensor_with_device_indices_is_refused() -> None:
    with pytest.raises(RuntimeError):
        torch.zeros(4)[torch.tensor([0, 1], device=D)]


def test_copy_goes_both_ways() -> None:
    c = torch.randn(6, 4)
    x = torch.empty(6, 4, device=D)
    assert x.copy_(c) is x
    same(x, c)
    back = torch.empty(6, 4)
    assert back.copy_(x) is back
    assert back.device.type == "cpu" and torch.equal(back, c)
    # Other dtype, other strides, broadcasting.
    x64 = torch.empty(4, 6, dtype=torch.float64, device=D).t()
    x64.copy_(c)
    assert torch.equal(x64.cpu(), c.double())
    half = torch.empty(6, 4, dtype=torch.float16)
    half.t().copy_(x.t())
    assert torch.equal(half, c.half())
    x.copy_(c[0])
    same(x, c[0].expand(6, 4).contiguous())


def test_copy_between_two_devices(two_devices: None) -> None:
    a = torch.randn(3, 4, device="flagos:0")
    b = torch.empty(4, 3, device="flagos:1").t()
    b.copy_(a)
    assert b.device == torch.device("flagos:1")
    assert torch.equal(b.cpu(), a.cpu())
    assert a.to("flagos:1").device == torch.device("flagos:1")


RESULTS_OF_DEVICE_1: dict[str, Callable[[torch.Tensor], object]] = {
    "add": lambda x: x + 1,
    "number first": lambda x: torch.tensor(2.0) * x,
    "mm": lambda x: x @ x,
    "view": lambda x: x.view(-1)[::2],
    "sum": lambda x: x.sum(),
    "sort": lambda x: tuple(x.sort()),
    "cat": lambda x: torch.cat([x, x]),
    "split": lambda x: x.split(2),
    "linalg": lambda x: tuple(torch.linalg.svd(x)),
    "conv": lambda x: F.conv2d(x[None, None], x[None, None, :2, :2]),
    "empty_like": torch.empty_like,
    "new_zeros": lambda x: x.new_zeros(3),
    "randn_like": torch.randn_like,
    "dropout": lambda x: F.dropout(x, 0.5),
    "nonzero": torch.nonzero,
    "index": lambda x: x[x > 0],
    "unique": torch.unique,
    "foreach": lambda x: torch._foreach_add([x, x], 1.0),
    "to": lambda x: x.to(torch.float64),
    "gru cell": lambda x: torch.gru_cell(x, x, x.repeat(3, 1), x.repeat(3, 1)),
    "fft": torch.fft.rfft,
}


@pytest.mark.parametrize("name", RESULTS_OF_DEVICE_1)
def test_results_stay_on_the_device_of_the_operands(name: str, two_devices: None) -> None:
    x = torch.randn(4, 4, device="flagos:1")
    assert torch.flagos.current_device() == 0
    results = RESULTS_OF_DEVICE_1[name](x)
    for result in results if isinstance(results, (tuple, list)) else [results]:
        assert isinstance(result, torch.Tensor)
        assert result.device == torch.device("flagos:1")
    assert torch.flagos.current_device() == 0


def test_gradients_stay_on_the_device_of_the_operands(two_devices: None) -> None:
    layer = torch.nn.Linear(4, 2).to("flagos:1")
    layer(torch.randn(3, 4, device="flagos:1")).sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.device == torch.device("flagos:1")


def test_factories_obey_the_device_argument_and_the_current_device(two_devices: None) -> None:
    for make in (
        lambda d: torch.empty(3, device=d),
        lambda d: torch.zeros(3, device=d),
        lambda d: torch.arange(3, device=d),
        lambda d: torch.randn(3, device=d),
        lambda d: torch.tensor([1, 2], device=d),
        lambda d: torch.full((2,), 1.0, device=d),
        lambda d: torch.eye(2, device=d),
        lambda d: torch.linspace(0, 1, 4, device=d),
        lambda d: torch.randperm(4, device=d),
        lambda d: torch.tril_indices(3, 3, device=d),
    ):
        assert make("flagos:1").device == torch.device("flagos:1")
        assert make("flagos").device == torch.device("flagos:0")
        with torch.flagos.device(1):
            assert make("flagos").device == torch.device("flagos:1")
            assert make("flagos:0").device == torch.device("flagos:0")
