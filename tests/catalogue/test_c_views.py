# SPDX-License-Identifier: Apache-2.0
"""Group C: views, in-place, out= and resizing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from helpers import D, like_cpu, run_ok, same


def test_C2_in_place_ternaries_on_mixed_layouts() -> None:
    for name in ("addcdiv_", "addcmul_"):
        a, b, c = torch.rand(3, 5).t(), torch.rand(5, 3), torch.rand(3, 5).t() + 1
        x = a.to(D)
        getattr(x, name)(b.to(D), c.to(D))
        same(x, getattr(a.clone(), name)(b, c))
    a, b, w = torch.rand(3, 5).t(), torch.rand(5, 3), torch.rand(10, 6)[::2, ::2]
    x = a.to(D)
    x.lerp_(b.to(D), w.to(D))
    same(x, a.clone().lerp_(b, w), rtol=1e-6, atol=1e-6)


def test_C3_unary_operators_on_non_contiguous_input_twice() -> None:
    c = torch.rand(3, 4, 5).movedim(0, 1) * 0.9
    x = c.to(D)
    for f in (
        F.softplus, F.silu, F.gelu, F.elu, F.hardswish, F.mish, F.leaky_relu, torch.exp, torch.log1p, torch.sigmoid,
        torch.tanh, torch.erf, torch.abs, torch.neg, torch.sqrt, torch.floor, torch.sign, torch.acos, torch.lgamma,
    ):  # fmt: skip
        for _ in range(2):
            same(f(x), f(c), rtol=1e-6, atol=1e-6)
    i = torch.arange(12).view(3, 4).t()
    same(i.to(D) & 5, i & 5)
    same(~i.to(D), ~i)


def test_C4_a_copy_between_gappy_views_moves_the_elements_only(two_devices: None) -> None:
    places = ("cpu", "flagos:0", "flagos:1")
    for source in places:
        for target in places:
            p = torch.full((8,), -1.0, device=target)
            p[::2].copy_(torch.arange(8.0, device=source)[::2])
            assert p.cpu().tolist() == [0.0, -1.0, 2.0, -1.0, 4.0, -1.0, 6.0, -1.0], (source, target)
            q = torch.full((4, 4), -1.0, device=target)
            q[:, 1:3].copy_(torch.arange(16.0, device=source).view(4, 4)[:, 1:3].t()[:2].t())
            assert (q[:, 0] == -1).all() and (q[:, 3] == -1).all(), (source, target)


def test_C4_with_protected_poisoned_and_misaligned_memory() -> None:
    run_ok(
        """
        import torch, torch_fl
        for source, target in (("cpu", "flagos"), ("flagos", "cpu"), ("flagos", "flagos"), ("flagos:0", "flagos:1")):
            for offset in range(3):
                p = torch.full((11,), -1.0, device=target)
                p[offset::3].copy_(torch.arange(11.0, device=source)[offset::3])
                expected = torch.full((11,), -1.0)
                expected[offset::3] = torch.arange(11.0)[offset::3]
                assert torch.equal(p.cpu(), expected), (source, target, p)
        """,
        FLAGOS_HOST_DEVICES="2",
        FLAGOS_HOST_PROTECT="1",
        FLAGOS_HOST_POISON="1",
        FLAGOS_HOST_MISALIGN="1",
    )


OUT_CALLS: dict[str, Callable[[Any], Any]] = {
    "addmm": lambda d: (torch.addmm, (t(d, 3, 2), t(d, 3, 4), t(d, 4, 2)), (3, 2)),
    "mm": lambda d: (torch.mm, (t(d, 3, 4), t(d, 4, 2)), (3, 2)),
    "add": lambda d: (torch.add, (t(d, 3, 2), t(d, 3, 2)), (3, 2)),
    "exp": lambda d: (torch.exp, (t(d, 3, 2),), (3, 2)),
    "cumsum": lambda d: (torch.cumsum, (t(d, 3, 2), 0), (3, 2)),
    "sum": lambda d: (torch.sum, (t(d, 3, 2, 4), 2), (3, 2)),
    "cat": lambda d: (torch.cat, ([t(d, 1, 2), t(d, 2, 2)],), (3, 2)),
    "index_select": lambda d: (torch.index_select, (t(d, 4, 2), 0, torch.tensor([0, 3, 1], device=d)), (3, 2)),
    "bmm": lambda d: (torch.bmm, (t(d, 1, 3, 4), t(d, 1, 4, 2)), (1, 3, 2)),
}


def t(device: str, *shape: int) -> torch.Tensor:
    """The same numbers on every device."""
    return torch.linspace(-1, 2, torch.Size(shape).numel()).view(shape).to(device)


def outcome(device: str, name: str, make_out: Callable[[tuple[int, ...]], torch.Tensor]) -> tuple[Any, ...]:
    """Kind of error, or (warned, values, shape, stride, identity) of a call with out=."""
    f, arguments, shape = OUT_CALLS[name](device)
    out = make_out(shape)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = f(*arguments, out=out)
        except (RuntimeError, TypeError) as error:
            return (type(error).__name__,)
    return (
        any("resized" in str(w.message) for w in caught),
        [round(v, 5) for v in out.flatten().tolist()],
        tuple(out.shape),
        out.stride(),
        result is out,
    )


OUT_KINDS: dict[str, Callable[[str], Callable[[tuple[int, ...]], torch.Tensor]]] = {
    "empty": lambda d: lambda shape: torch.empty(0, device=d),
    "right shape": lambda d: lambda shape: torch.full(shape, 7.0, device=d),
    "wrong shape": lambda d: lambda shape: torch.full((5,), 7.0, device=d),
    "transposed": lambda d: lambda shape: torch.full(shape[::-1], 7.0, device=d).permute(*range(len(shape))[::-1]),
    "gappy": lambda d: lambda shape: torch.full((*shape[:-1], shape[-1] * 2), 7.0, device=d)[..., ::2],
    "internally overlapping": lambda d: lambda shape: torch.zeros(1, device=d).expand(shape),
    "wrong dtype": lambda d: lambda shape: torch.zeros(shape, dtype=torch.int64, device=d),
    "wider dtype": lambda d: lambda shape: torch.zeros(shape, dtype=torch.float64, device=d),
}


@pytest.mark.parametrize("kind", OUT_KINDS)
@pytest.mark.parametrize("name", OUT_CALLS)
def test_C8_out_behaves_as_on_the_cpu(name: str, kind: str) -> None:
    expected = outcome("cpu", name, OUT_KINDS[kind]("cpu"))
    assert outcome(D, name, OUT_KINDS[kind](D)) == expected


def test_C8_an_out_that_overlaps_an_input_is_refused() -> None:
    for device in ("cpu", D):
        x = torch.arange(6.0, device=device)
        with pytest.raises(RuntimeError, match="overlap|unsupported operation"):
            torch.add(x[:-1], 1, out=x[1:])


def test_C9_resizing_warns_as_on_the_cpu() -> None:
    for device in ("cpu", D):
        a, b = torch.ones(3, device=device), torch.ones(3, device=device)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            out = torch.empty(0, device=device)
            assert torch.add(a, b, out=out) is out and out.tolist() == [2.0] * 3
        with pytest.warns(UserWarning, match="resized"):
            torch.add(a, b, out=torch.empty(2, device=device))


def test_C10_bucketize_of_a_transposed_tensor_with_poisoned_memory() -> None:
    run_ok(
        """
        import torch, torch_fl
        x, b = torch.rand(5, 7), torch.linspace(0, 1, 9)
        for right in (False, True):
            y = torch.bucketize(x.to("flagos").t(), b.to("flagos"), right=right)
            assert torch.equal(y.cpu(), torch.bucketize(x.t(), b, right=right))
        s = torch.searchsorted(b.to("flagos"), x.to("flagos")[:, ::2])
        assert torch.equal(s.cpu(), torch.searchsorted(b, x[:, ::2]))
        """,
        FLAGOS_HOST_POISON="1",
        FLAGOS_HOST_PROTECT="1",
        FLAGOS_HOST_MISALIGN="1",
    )


def test_C11_values_and_strides_for_awkward_layouts() -> None:
    layouts = {
        "transposed": torch.randn(4, 6).t(),
        "step-sliced": torch.randn(12, 8)[::2, ::2],
        "expanded": torch.randn(1, 4).expand(6, 4),
        "empty": torch.randn(0, 4),
    }
    calls: dict[str, Callable[[torch.Tensor], Any]] = {
        "index_select": lambda x: x.index_select(0, torch.arange(min(2, x.shape[0]), device=x.device)),
        "sum": lambda x: x.sum(0),
        "mean": lambda x: x.mean(1),
        "topk": lambda x: x.topk(2, dim=1),
        "sort": lambda x: x.sort(0),
        "weight_norm": lambda x: torch._weight_norm(x, torch.ones(x.shape[0], 1, device=x.device)),
        "clone": torch.clone,
        "add": lambda x: x + 1,
        "cumsum": lambda x: x.cumsum(1),
        "flip": lambda x: x.flip(0),
        "relu": torch.relu,
        "cat": lambda x: torch.cat([x, x], 1),
    }
    for call, f in calls.items():
        for layout, x in layouts.items():
            if call == "weight_norm" and layout == "empty":
                continue  # plain torch 2.11 dies of SIGFPE here on the CPU
            same(f(x.to(D) if x.is_contiguous() else _same_layout(x)), f(x), rtol=1e-6, atol=1e-6)
    for f in (torch.sum, torch.clone, torch.neg, lambda x: x.cumsum(0)):
        same(f(torch.tensor(2.0, device=D)), f(torch.tensor(2.0)))


def _same_layout(x: torch.Tensor) -> torch.Tensor:
    """A copy on the device that lies in its storage exactly as `x` does."""
    base = torch.empty(0).set_(x.untyped_storage()).to(D)
    return base.as_strided(x.shape, x.stride(), x.storage_offset())


def test_C12_softmax_of_non_dense_input() -> None:
    like_cpu(lambda x: F.softmax(x[:, -1, :], -1), torch.randn(2, 5, 7, requires_grad=True), rtol=1e-6, atol=1e-6)
    like_cpu(lambda x: F.softmax(x[:, :, ::2], 1), torch.randn(2, 5, 7, requires_grad=True), rtol=1e-6, atol=1e-6)


def test_C13_unfold_is_a_view_and_repeat_is_right() -> None:
    v = torch.zeros(4, device=D)
    v.unfold(0, 2, 1)[0] = 1
    assert v[0] == 1 and v[1] == 1
    same(torch.arange(3, device=D).repeat(2, 2), torch.arange(3).repeat(2, 2))


VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "alias": torch.ops.aten.alias,
    "as_strided": lambda x: x.as_strided((2, 2), (1, 2), 1),
    "chunk": lambda x: x.chunk(2),
    "detach": lambda x: x.detach(),
    "diagonal": lambda x: x.diagonal(),
    "expand": lambda x: x.expand(3, 4, 6),
    "flatten": lambda x: x.flatten(),
    "movedim": lambda x: x.movedim(0, 1),
    "narrow": lambda x: x.narrow(0, 1, 2),
    "permute": lambda x: x.permute(1, 0),
    "reshape": lambda x: x.reshape(2, 12),
    "select": lambda x: x.select(0, 1),
    "slice": lambda x: x[1:3, ::2],
    "split": lambda x: x.split(2),
    "split_with_sizes": lambda x: x.split([1, 3]),
    "squeeze": lambda x: x[None].squeeze(0),
    "t": lambda x: x.t(),
    "tensor_split": lambda x: x.tensor_split(2),
    "transpose": lambda x: x.transpose(0, 1),
    "unbind": lambda x: x.unbind(0),
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "view": lambda x: x.view(-1),
    "view as dtype": lambda x: x.view(torch.int32),
    "view_as_complex": lambda x: torch.view_as_complex(x.view(4, 3, 2)),
    "view_as_real": lambda x: torch.view_as_real(torch.view_as_complex(x.view(4, 3, 2))),
    "T": lambda x: x.T,
    "hsplit": lambda x: x.hsplit(2),
}


@pytest.mark.parametrize("name", VIEWS)
def test_C13_every_view_aliases(name: str) -> None:
    c = torch.randn(4, 6)
    x = c.to(D)
    actual, expected = VIEWS[name](x), VIEWS[name](c)
    actual, expected = ([a] if isinstance(a, torch.Tensor) else list(a) for a in (actual, expected))
    for a, e in zip(actual, expected, strict=True):
        assert a.device == x.device and a.shape == e.shape and a.stride() == e.stride()
        assert a.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert a.data_ptr() - x.data_ptr() == e.data_ptr() - c.data_ptr()
        assert torch.equal(a.cpu(), e)
    x.zero_()
    assert all((a == 0).all() for a in actual)


def test_C15_reflection_pad_and_strided_slice_backward() -> None:
    like_cpu(
        lambda x: F.pad(x, (1, 2, 1, 2), mode="reflect")[..., ::2, ::2].sum(),
        torch.randn(1, 2, 5, 6, requires_grad=True),
    )
    like_cpu(
        lambda x, w: F.conv2d(F.pad(x, (1, 2, 1, 2), mode="reflect"), w, stride=2),
        torch.randn(1, 2, 5, 6, requires_grad=True),
        torch.randn(3, 2, 3, 3, requires_grad=True),
        rtol=1e-5,
        atol=1e-5,
    )


def test_C17_dlpack_aliases_or_refuses() -> None:
    x = torch.arange(4.0, device=D)
    try:
        y = torch.from_dlpack(x)
    except (RuntimeError, BufferError, ValueError, TypeError) as error:
        assert str(error)
        return
    x[0] = 5.0
    assert y[0].item() == 5.0 and y.device == x.device
