# SPDX-License-Identifier: Apache-2.0
"""Operators of other libraries: routed when they have a CPU kernel, whenever they were registered."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch

import torch_fl
from helpers import D

_numbers = itertools.count()


@pytest.fixture
def library() -> Iterator[tuple[str, torch.library.Library]]:
    """A namespace that is new to this test, registered after torch_fl was imported."""
    name = f"torch_fl_test_{next(_numbers)}"
    library = torch.library.Library(name, "DEF")
    yield name, library
    library._destroy()


def test_a_cached_cpu_result_is_left_alone(library: tuple[str, torch.library.Library]) -> None:
    name, lib = library
    cached = torch.arange(4.0)
    pointer, version, reference = cached.data_ptr(), cached._version, cached.clone()
    lib.define("cached(Tensor x) -> Tensor")
    lib.impl("cached", lambda x: cached, "CPU")
    x = torch.ones(2, device=D)
    results = [getattr(torch.ops, name).cached(x) for _ in range(3)]
    for result in results:
        assert result.device == x.device
        assert torch.equal(result.cpu(), reference)
        result.fill_(-1.0)
    assert len({r.data_ptr() for r in results}) == 3, "results share memory with each other"
    del results, result
    gc.collect()
    assert cached.device.type == "cpu"
    assert cached.data_ptr() == pointer
    assert cached._version == version
    assert torch.equal(cached, reference)


def test_a_cached_view_and_its_base_are_left_alone(library: tuple[str, torch.library.Library]) -> None:
    name, lib = library
    base = torch.arange(8.0)
    lib.define("part(Tensor x) -> Tensor")
    lib.impl("part", lambda x: base[2:5], "CPU")
    result = getattr(torch.ops, name).part(torch.ones(1, device=D))
    assert result.device.type == D and result.cpu().tolist() == [2.0, 3.0, 4.0]
    result.zero_()
    assert base.tolist() == list(range(8)) and base.device.type == "cpu"


@pytest.mark.parametrize("kind", ["CompositeExplicitAutograd", "CompositeImplicitAutograd"])
def test_an_operator_registered_later_takes_its_cpu_kernel(
    library: tuple[str, torch.library.Library], kind: str
) -> None:
    name, lib = library
    torch.ones(1, device=D).add(1)  # the routes are in use before the registration
    taken: list[str] = []

    def composite(x: torch.Tensor) -> torch.Tensor:
        taken.append("composite")
        return x + 1

    def kernel(x: torch.Tensor) -> torch.Tensor:
        taken.append("cpu")
        assert x.device.type == "cpu"
        return x + 1

    lib.define("later(Tensor x) -> Tensor")
    lib.impl("later", composite, kind)
    lib.impl("later", kernel, "CPU")
    result = getattr(torch.ops, name).later(torch.zeros(3, device=D))
    assert taken == ["cpu"]
    assert result.device.type == D and result.cpu().tolist() == [1.0, 1.0, 1.0]


def test_a_kernel_added_to_a_known_operator_is_found(library: tuple[str, torch.library.Library]) -> None:
    name, lib = library
    lib.define("grows(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError):
        getattr(torch.ops, name).grows(torch.zeros(3, device=D))
    lib.impl("grows", lambda x: x + 2, "CPU")
    assert getattr(torch.ops, name).grows(torch.zeros(3, device=D)).cpu().tolist() == [2.0, 2.0, 2.0]


def test_a_kernel_registered_for_the_device_wins(library: tuple[str, torch.library.Library]) -> None:
    name, lib = library
    lib.define("own(Tensor x) -> Tensor")
    lib.impl("own", lambda x: x + 1, "CPU")
    lib.impl("own", lambda x: x + 100, "PrivateUse1")
    assert getattr(torch.ops, name).own(torch.zeros(1, device=D)).item() == 100.0


def test_custom_op_with_gradient() -> None:
    @torch.library.custom_op("torch_fl_test::numpy_sin", mutates_args=(), device_types="cpu")
    def numpy_sin(x: torch.Tensor, scale: float) -> torch.Tensor:
        # numpy proves that the kernel sees ordinary CPU memory
        return torch.from_numpy(numpy.sin(x.numpy()) * numpy.float32(scale))

    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, float], output: torch.Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.scale = inputs[1]

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * x.cos() * ctx.scale, None

    numpy_sin.register_autograd(backward, setup_context=setup_context)
    c = torch.randn(5, requires_grad=True)
    x = c.detach().to(D).requires_grad_()
    expected, actual = numpy_sin(c, 2.0), numpy_sin(x, 2.0)
    assert actual.device.type == D
    expected.sum().backward()
    actual.sum().backward()
    assert torch.equal(actual.detach().cpu(), expected.detach())
    assert x.grad is not None and c.grad is not None and torch.equal(x.grad.cpu(), c.grad)


def test_custom_op_that_writes_its_argument() -> None:
    @torch.library.custom_op("torch_fl_test::add_one_to_all", mutates_args=("xs",), device_types="cpu")
    def add_one_to_all(xs: list[torch.Tensor], y: torch.Tensor | None) -> None:
        for x in xs:
            x += 1 if y is None else y

    xs = [torch.zeros(3, device=D), torch.zeros(2, 2, device=D)]
    versions = [x._version for x in xs]
    add_one_to_all(xs, None)
    add_one_to_all(xs, torch.tensor([2.0], device=D))
    assert xs[0].cpu().tolist() == [3.0] * 3 and xs[1].cpu().tolist() == [[3.0] * 2] * 2
    assert all(x._version > v for x, v in zip(xs, versions, strict=True)), "autograd would not see the writes"


def test_an_operator_that_returns_its_argument_keeps_identity(library: tuple[str, torch.library.Library]) -> None:
    name, lib = library

    def kernel(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(3)

    lib.define("triple_(Tensor(a!) x) -> Tensor(a!)")
    lib.impl("triple_", kernel, "CPU")
    x = torch.ones(2, device=D)
    assert getattr(torch.ops, name).triple_(x) is x
    assert x.cpu().tolist() == [3.0, 3.0]


def test_all_kinds_of_results(library: tuple[str, torch.library.Library]) -> None:
    name, lib = library
    lib.define("many(Tensor x, Tensor[] ys, Tensor?[] zs) -> (Tensor, Tensor[], int, float, bool)")
    lib.impl("many", lambda x, ys, zs: (x * 2, [y + 1 for y in ys], len(zs), 0.5, zs[0] is None), "CPU")
    x = torch.ones(2, device=D)
    first, several, count, number, missing = getattr(torch.ops, name).many(x, [x, x + 1], [None, x])
    assert first.device.type == D and first.cpu().tolist() == [2.0, 2.0]
    assert [s.cpu().tolist() for s in several] == [[2.0, 2.0], [3.0, 3.0]]
    assert all(s.device.type == D for s in several)
    assert (count, number, missing) == (2, 0.5, True)


def test_a_failing_kernel_leaves_its_arguments_usable(library: tuple[str, torch.library.Library]) -> None:
    name, lib = library

    def kernel(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("on purpose")

    lib.define("fails(Tensor x) -> Tensor")
    lib.impl("fails", kernel, "CPU")
    x = torch.ones(2, device=D)
    with pytest.raises(ValueError, match="on purpose"):
        getattr(torch.ops, name).fails(x)
    assert x.device.type == D and (x + 1).cpu().tolist() == [2.0, 2.0]


def test_keep_on_cpu_names_the_outputs_that_stay(library: tuple[str, torch.library.Library]) -> None:
    name, lib = library
    lib.define("lengths(Tensor x) -> (Tensor, Tensor)")
    lib.impl("lengths", lambda x: (x + 1, torch.tensor(x.shape)), "CPU")
    operator = getattr(torch.ops, name).lengths
    x = torch.ones(2, 3, device=D)
    assert [r.device.type for r in operator(x)] == [D, D]
    torch_fl.keep_on_cpu(f"{name}::lengths", [1])
    moved, kept = operator(x)
    assert moved.device.type == D and kept.device.type == "cpu"
    assert kept.tolist() == [2, 3]


@pytest.mark.parametrize(("op", "outputs"), [("no_namespace", 0), ("a::b", -1), ("a::b", [0, -2])])
def test_keep_on_cpu_refuses_nonsense(op: str, outputs: Any) -> None:
    with pytest.raises(ValueError):
        torch_fl.keep_on_cpu(op, outputs)
