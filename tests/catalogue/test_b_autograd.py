# SPDX-License-Identifier: Apache-2.0
"""Group B: autograd."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from helpers import D, like_cpu, run_ok, same


def test_B1_an_operator_of_the_user_for_this_device_only() -> None:
    library = torch.library.Library("torch_fl_b1", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.define("opaque(Tensor x) -> Tensor")

    def opaque(x: torch.Tensor) -> torch.Tensor:
        return x.detach() * 2  # a kernel that autograd cannot look into, as a compiled one

    for key in ("PrivateUse1", "CPU"):
        library.impl("double", lambda x: x + x, key)
        library.impl("opaque", opaque, key)
    for device in ("cpu", D):
        x = torch.ones(3, device=device, requires_grad=True)
        with torch.no_grad():
            assert torch.ops.torch_fl_b1.double(x).tolist() == [2.0] * 3
            assert torch.ops.torch_fl_b1.opaque(x).tolist() == [2.0] * 3
        torch.ops.torch_fl_b1.double(x).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [2.0] * 3
        # No formula: torch says so at backward and names the operator, on the device as on the CPU.
        with pytest.warns(UserWarning, match="torch_fl_b1::opaque: an autograd kernel was not registered"):
            torch.ops.torch_fl_b1.opaque(x).sum().backward()
        assert x.grad.tolist() == [2.0] * 3


def test_B2_a_composite_keeps_its_gradient() -> None:
    x = torch.rand(3, device=D, requires_grad=True)
    x.half().float().sum().backward()
    assert x.grad is not None and (x.grad == 1).all()


def test_B2_no_composite_implicit_operator_is_routed_without_a_derivative() -> None:
    import torch_fl

    has = torch._C._dispatch_has_kernel_for_dispatch_key

    def loses_its_gradient(name: str) -> bool:
        if not name.startswith("aten::") or not has(name, "CompositeImplicitAutograd"):
            return False
        # Where the CPU itself has a kernel the composite has lost already, on every device; with an autograd kernel of
        # this device's own nothing is lost; and a result without tensors has no gradient.
        packet, _, overload = name.removeprefix("aten::").partition(".")
        schema = getattr(getattr(torch.ops.aten, packet), overload or "default")._schema
        returns_tensors = any("Tensor" in str(r.type) for r in schema.returns)
        return returns_tensors and not has(name, "CPU") and not has(name, "AutogradPrivateUse1")

    assert [name for name in torch_fl.get_registered_ops() if loses_its_gradient(name)] == []


def test_B3_softmax_and_its_gradient_on_transposed_input() -> None:
    for f in (F.softmax, F.log_softmax):
        for dim in (0, -1):
            x = torch.randn(32, 32).t().requires_grad_()
            like_cpu(lambda t, f=f, dim=dim: f(t, dim) * torch.arange(32, device=t.device), x, rtol=1e-6, atol=1e-6)


def test_B4_linear_with_an_expanded_gradient() -> None:
    like_cpu(
        lambda x, w, b: F.linear(x, w, b).sum(),
        *(torch.randn(*s, requires_grad=True) for s in ((5, 4), (3, 4), (3,))),
        rtol=1e-6,
        atol=1e-6,
    )


def test_B5_in_place_operators_with_a_number() -> None:
    c = torch.rand(4) + 0.5
    for name in ("add_", "sub_", "mul_", "div_", "pow_", "fmod_", "remainder_", "floor_divide_", "clamp_min_", "fill_"):
        x, e = c.to(D), c.clone()
        assert getattr(x, name)(2.0) is x
        same(x, getattr(e, name)(2.0))


def test_B6_an_integer_means_this_device() -> None:
    assert torch.device(0) == torch.device("flagos:0")
    assert torch.ones(1, device=0).device == torch.device("flagos:0")
    assert torch.ones(1).to(0).device == torch.device("flagos:0")


def test_B8_transforms_and_autocast_see_every_operator() -> None:
    c = torch.randn(4, 3)
    x = c.to(D)
    same(torch.func.vmap(torch.sin)(x), torch.func.vmap(torch.sin)(c))
    same(torch.func.vmap(torch.dot)(x, x), torch.func.vmap(torch.dot)(c, c), rtol=1e-6, atol=1e-6)
    same(torch.func.grad(lambda t: (t**2).sum())(x), torch.func.grad(lambda t: (t**2).sum())(c))
    same(
        torch.func.jvp(lambda t: t.exp() * 2, (x,), (torch.ones_like(x),)),
        torch.func.jvp(lambda t: t.exp() * 2, (c,), (torch.ones_like(c),)),
    )
    same(torch.func.jacrev(lambda t: t.sum(0) ** 2)(x), torch.func.jacrev(lambda t: t.sum(0) ** 2)(c))
    same(torch.func.functionalize(lambda t: t.clone().add_(1))(x), c + 1)
    with torch.autocast(D, dtype=torch.bfloat16):
        y = x @ x.t()
        assert y.dtype == torch.bfloat16
        assert torch.exp(y).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x.t()).dtype == torch.float32, "the CPU's autocast leaks onto the device"
    with torch.autocast(D, dtype=torch.bfloat16):
        assert (c @ c.t()).dtype == torch.float32, "the device's autocast leaks onto the CPU"


def test_B9_module_to_keeps_parameter_identity() -> None:
    model = torch.nn.Linear(2, 2)
    p = model.weight
    model.to(D)
    assert model.weight is p and p.device.type == D
    model(torch.ones(1, 2, device=D)).sum().backward()
    assert p.grad is not None and p.grad.device.type == D
    model.to("cpu")
    assert model.weight is p and p.device.type == "cpu" and p.grad.device.type == "cpu"


def test_B_a_program_may_end_right_after_backward() -> None:
    """On torch 2.15 the autograd thread asked for the GIL of an ending interpreter (pytorch issue 190489)."""
    code = """
        import sys, torch, torch_fl
        sys.setswitchinterval(5)  # the main thread gives up the GIL only where it means to, so the race is nearly sure
        x = torch.ones(3, device="flagos", requires_grad=True)
        x.sum().backward()
        """
    for _ in range(2):
        run_ok(code)
