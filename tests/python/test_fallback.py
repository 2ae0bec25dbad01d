# SPDX-License-Identifier: Apache-2.0
"""The copying CPU fallback, forced for every operator: same values and identities, and every copy is counted."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F

import torch_fl
from helpers import D, like_cpu, run_ok, run_python, same

pytestmark = pytest.mark.usefixtures("forced_cpu")


def row(op: str) -> tuple[int, int]:
    """(calls, copied_bytes) of an operator on route `cpu`; overloads are summed."""
    rows = [r for r in torch_fl.counters() if r["route"] == "cpu" and base_name(r["op"]) == op]
    return sum(r["calls"] for r in rows), sum(r["copied_bytes"] for r in rows)


def base_name(op: str) -> str:
    """`add` for `aten::add.Tensor`."""
    return op.removeprefix("aten::").split(".")[0]


def test_values_and_gradients() -> None:
    a, b = torch.randn(5, 4, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    like_cpu(lambda x, y: x @ y, a, b)
    like_cpu(lambda x: F.layer_norm(x, (4,)).relu().sum(0), torch.randn(5, 4, requires_grad=True))
    like_cpu(lambda x: F.gelu(x).softmax(-1), torch.randn(5, 4).t().requires_grad_(), rtol=1e-6, atol=1e-6)
    like_cpu(lambda x: x.sort(descending=True), torch.randn(6, 3))
    like_cpu(lambda x: torch.linalg.svd(x).S, torch.randn(4, 4), rtol=1e-5, atol=1e-5)
    image, kernel = torch.randn(2, 3, 6, 6, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)
    like_cpu(lambda x, w: F.conv2d(x, w, padding=1), image, kernel, rtol=1e-5, atol=1e-5)


def test_every_copy_is_counted() -> None:
    x, y = torch.ones(100, device=D), torch.ones(100, device=D)
    torch_fl.reset_counters()
    x + y
    calls, copied = row("add")
    assert calls == 1
    assert copied == 3 * 400  # two inputs in, one result out
    x.add_(y)
    calls, copied_in_place = row("add_")
    assert calls == 1 and copied_in_place >= 3 * 400
    x.sum()
    assert row("sum")[0] == 1 and row("sum")[1] >= 400
    for _ in range(10):
        x + y
    assert row("add") == (11, 11 * 1200)


def test_in_place_keeps_identity_and_version() -> None:
    x = torch.ones(3, 4, device=D)
    pointer, version = x.data_ptr(), x._version
    for f in (
        lambda t: t.add_(1),
        lambda t: t.mul_(torch.full((4,), 2.0, device=D)),
        lambda t: t.relu_(),
        lambda t: t.clamp_(0, 3),
        lambda t: t.index_add_(0, torch.tensor([0], device=D), torch.ones(1, 4, device=D)),
    ):
        before = x._version
        assert f(x) is x
        assert x._version > before
    assert x.data_ptr() == pointer and x._version > version
    assert x.cpu().tolist() == [[4.0] * 4, [3.0] * 4, [3.0] * 4]


def test_out_keeps_identity_and_is_resized() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 2)
    out = torch.empty(3, 2, device=D)
    pointer = out.data_ptr()
    assert torch.mm(a.to(D), b.to(D), out=out) is out
    assert out.data_ptr() == pointer
    torch.testing.assert_close(out.cpu(), a @ b)
    out = torch.empty(0, device=D)
    assert torch.add(a.to(D), 1, out=out) is out
    same(out, a + 1)
    strided = torch.zeros(4, 3, device=D).t()
    torch.add(a.to(D), 1, out=strided)
    assert strided.stride() == (1, 3) and torch.equal(strided.cpu(), a + 1)
    values, indices = torch.empty(3, device=D), torch.empty(3, dtype=torch.int64, device=D)
    result = torch.max(a.to(D), 1, out=(values, indices))
    assert result[0] is values and result[1] is indices
    assert torch.equal(indices.cpu(), a.max(1).indices)


def test_views_alias_and_writes_through_them_arrive() -> None:
    x = torch.zeros(4, 6, device=D)
    part = x[1:3, ::2]
    assert part.data_ptr() == x.data_ptr() + 24 and part._is_view()
    part.add_(1)
    expected = torch.zeros(4, 6)
    expected[1:3, ::2] += 1
    same(x, expected)
    assert x.view(-1).data_ptr() == x.data_ptr()
    x.t().mul_(3)
    same(x, expected * 3)
    x.diagonal().fill_(9)
    expected = expected * 3
    expected.diagonal().fill_(9)
    same(x, expected)
    # A strided view must not carry its gaps back: they may hold somebody else's values.
    base = torch.arange(8.0, device=D)
    base[::2].neg_()
    assert base.cpu().tolist() == [-0.0, 1.0, -2.0, 3.0, -4.0, 5.0, -6.0, 7.0]


def test_lists_are_written_back() -> None:
    cs = [torch.randn(3), torch.randn(2, 2), torch.randn(0)]
    xs = [c.to(D) for c in cs]
    pointers = [x.data_ptr() for x in xs]
    torch._foreach_add_(xs, 1.0)
    torch._foreach_mul_(xs, [2.0, 3.0, 4.0])
    torch._foreach_add_(cs, 1.0)
    torch._foreach_mul_(cs, [2.0, 3.0, 4.0])
    same(xs, cs)
    assert [x.data_ptr() for x in xs] == pointers
    same(torch._foreach_sqrt([x.abs() for x in xs]), [c.abs().sqrt() for c in cs])
    same(torch.cat(xs[:1] * 3), torch.cat(cs[:1] * 3))
    same(torch.stack([xs[0], xs[0]]), torch.stack([cs[0], cs[0]]))


@pytest.mark.parametrize("kind", [{"foreach": True}, {"fused": True}, {"foreach": False}], ids=str)
def test_optimizers_step_as_on_the_cpu(kind: dict[str, bool]) -> None:
    parameters = []
    for device in ("cpu", D):
        torch.manual_seed(1)
        p = [torch.nn.Parameter(torch.randn(4, 3).to(device)), torch.nn.Parameter(torch.randn(3).to(device))]
        optimizer = torch.optim.AdamW(p, lr=0.1, **kind)
        for _ in range(3):
            for q in p:
                q.grad = torch.ones_like(q) * 0.5
            optimizer.step()
        parameters.append([q.detach() for q in p])
    same(parameters[1], parameters[0], rtol=1e-6, atol=1e-6)


def test_optional_and_undefined_tensors() -> None:
    x, w = torch.randn(2, 5), torch.randn(3, 5)
    like_cpu(lambda a, b: F.linear(a, b), x, w, rtol=1e-6, atol=1e-6)
    like_cpu(lambda a: F.layer_norm(a, (5,)), x, rtol=1e-6, atol=1e-6)
    like_cpu(lambda a: F.batch_norm(a, None, None, training=True), x, rtol=1e-5, atol=1e-6)
    like_cpu(lambda a: torch.bincount(a), torch.tensor([1, 2, 2]))
    like_cpu(lambda a, b: torch.bincount(a, b), torch.tensor([1, 2, 2]), torch.tensor([0.5, 1.0, 1.0]))
    # Backward with an output_mask gives undefined gradients.
    image, kernel = torch.randn(1, 2, 5, 5), torch.randn(2, 2, 3, 3, requires_grad=True)
    like_cpu(lambda a, b: F.conv2d(a, b), image, kernel, rtol=1e-5, atol=1e-5)
    like_cpu(lambda a: a.clamp(min=torch.zeros_like(a)), x)


def test_indexing() -> None:
    x = torch.randn(5, 4)
    like_cpu(lambda a: a[a > 0], x)
    like_cpu(lambda a: a[torch.ones_like(a, dtype=torch.bool)], x)
    like_cpu(lambda a, i: a[i], x, torch.tensor([4, 0, 0]))
    like_cpu(lambda a, i: a[:, i], x, torch.tensor([3, 1]))
    like_cpu(lambda a: a.nonzero(), (x > 0).float())
    like_cpu(lambda a: a.masked_fill(a > 0, 2.0), x)
    like_cpu(
        lambda a, i: torch.index_put(a, (i,), torch.ones(4, device=a.device), accumulate=True), x, torch.tensor([1, 1])
    )
    same(x.to(D)[torch.tensor([2, 2])], x[torch.tensor([2, 2])])  # CPU indices
    y = x.to(D)
    y[y < 0] = 0.0
    same(y, x.clamp(min=0))


def test_the_device_is_right_when_the_first_tensor_is_a_cpu_number(two_devices: None) -> None:
    for device in ("flagos:0", "flagos:1"):
        x = torch.ones(3, device=device)
        for result in (torch.tensor(2.0) * x, torch.tensor(2.0) - x, torch.where(x > 0, torch.tensor(1.0), x)):
            assert result.device == torch.device(device)


def test_results_stay_on_the_second_device(two_devices: None) -> None:
    x = torch.randn(4, 4, device="flagos:1")
    assert all(r.device.index == 1 for r in (x @ x, x.sort()[0], torch.cat([x, x]), x.nonzero()))
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x + torch.ones(4, 4, device="flagos:0")
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x + torch.ones(4, 4)


def test_special_tensors() -> None:
    z = torch.randn(3, dtype=torch.complex64)
    same((z.to(D).conj() * 2).resolve_conj(), (z.conj() * 2).resolve_conj())
    same(z.to(D).conj().imag + 1, z.conj().imag + 1)
    like_cpu(lambda a: a.expand(4, 3) + 1, torch.randn(3))
    like_cpu(lambda a: a.sum(0), torch.empty(0, 3))
    like_cpu(lambda a: a + 1, torch.tensor(2.0))
    like_cpu(lambda a: a.to(torch.bfloat16) * 2, torch.randn(5))
    assert torch.equal(torch.ones(3, device=D), torch.ones(3, device=D))
    assert torch.ones(3, device=D).sum().item() == 3.0


def test_views_factories_and_random_operators_never_fall_back() -> None:
    torch_fl.reset_counters()
    x = torch.empty(4, 4, device=D)
    torch.zeros(3, device=D), torch.ones(3, device=D), torch.arange(4, device=D), torch.full((2,), 1.0, device=D)
    torch.randn(3, device=D), torch.randperm(4, device=D), torch.empty(3, device=D).normal_()
    F.dropout(x, 0.5), torch.bernoulli(torch.full((3,), 0.5, device=D))
    x.view(-1), x[1:], x.t(), x.expand(2, 4, 4), x.unfold(0, 2, 1), x.permute(1, 0), x.unsqueeze(0), x.diagonal()
    x.split(2), x.detach(), x.as_strided((2,), (1,)), x.select(0, 1), x.squeeze(), x.unbind()
    never = {
        "view", "slice", "t", "transpose", "expand", "unfold", "permute", "unsqueeze", "diagonal", "split", "detach",
        "alias", "as_strided", "select", "squeeze", "unbind", "_reshape_alias", "empty", "empty_strided", "randn",
        "randperm", "normal_", "uniform_", "bernoulli_", "native_dropout", "random_",
    }  # fmt: skip
    fallen = {base_name(r["op"]) for r in torch_fl.counters() if r["route"] == "cpu"}
    assert not fallen & never


def test_random_numbers_are_the_same_as_without_the_fallback() -> None:
    from torch_fl import _C

    torch.manual_seed(3)
    forced = torch.randn(8, device=D)
    _C._set_forced_route("")
    torch.manual_seed(3)
    assert torch.equal(forced, torch.randn(8, device=D))


@pytest.fixture
def policy() -> Iterator[None]:
    """Puts the fallback policy back after a test that sets it."""
    before = torch_fl.get_fallback_policy()
    yield
    torch_fl.set_fallback_policy(before)


def test_policy_error_names_operator_dtypes_shapes_and_remedy(policy: None) -> None:
    x = torch.ones(2, 3, device=D, dtype=torch.float64)
    torch_fl.set_fallback_policy("error")
    with pytest.raises(RuntimeError) as raised:
        torch.mm(x, x.t())
    first, whole = str(raised.value).splitlines()[0], str(raised.value)
    assert "mm" in first and re.search(r"(?i)float64|double", first) and re.search(r"2, ?3", first)
    assert "set_fallback_policy" in whole or "FLAGOS_FALLBACK" in whole
    torch_fl.set_fallback_policy("allow")
    assert torch.mm(x, x.t()).cpu().tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_policy_warn_warns_once_for_each_operator(policy: None) -> None:
    # Operators that no other test of this process falls back with.
    x = torch.rand(3, device=D)
    torch_fl.set_fallback_policy("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            torch.special.i0e(x)
        torch.special.i1e(x)
    texts = [str(w.message) for w in caught if "i0e" in str(w.message) or "i1e" in str(w.message)]
    assert len(texts) == 2, texts
    assert "i0e" in texts[0] and "i1e" in texts[1]
    assert re.search(r"(?i)float", texts[0]) and "3" in texts[0], "dtypes and shapes are missing"
    assert "set_fallback_policy" in texts[0] or "FLAGOS_FALLBACK" in texts[0], "the remedy is missing"


def test_policy_allow_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.special.i1(torch.rand(3, device=D))


@pytest.mark.parametrize("word", ["", "perhaps", "ERROR"])
def test_an_unknown_policy_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="known are"):
        torch_fl.set_fallback_policy(word)
    assert torch_fl.get_fallback_policy() == "allow"


def test_the_environment_forces_the_fallback() -> None:
    run_ok(
        """
        import torch, torch_fl
        layer = torch.nn.Linear(4, 2).to("flagos")
        x = torch.ones(3, 4, device="flagos")
        layer(x).sum().backward()
        rows = torch_fl.counters()
        fallen = {r["op"] for r in rows if r["route"] == "cpu"}
        assert any("addmm" in op or "linear" in op for op in fallen), fallen
        assert sum(r["copied_bytes"] for r in rows) > 0
        assert layer.weight.grad.cpu().tolist() == [[3.0] * 4] * 2
        """,
        FLAGOS_FORCE_BACKEND="cpu",
        FLAGOS_FALLBACK="allow",
    )


def test_the_environment_sets_the_policy() -> None:
    code = "import torch, torch_fl; x = torch.empty(2, device='flagos'); print('made'); x + x; print('added')"
    done = run_python(code, FLAGOS_FORCE_BACKEND="cpu", FLAGOS_FALLBACK="error")
    assert done.returncode == 1 and "RuntimeError" in done.stderr and "aten::add" in done.stderr
    assert "made" in done.stdout and "added" not in done.stdout
    done = run_python(code, FLAGOS_FORCE_BACKEND="cpu")
    assert done.returncode == 0 and "add" in done.stderr, "warn is the default"
    done = run_python(code, FLAGOS_FALLBACK="error")
    assert done.returncode == 0 and "added" in done.stdout, "add needs no fallback on this device"


def test_the_fallback_log_names_the_operator() -> None:
    done = run_python(
        "import torch, torch_fl; torch.ones(2, device='flagos').exp()",
        FLAGOS_FORCE_BACKEND="cpu",
        FLAGOS_FALLBACK="allow",
        FLAGOS_LOG_FALLBACK="1",
    )
    assert re.search(r"^\[flagos cpu_fallback\] aten::exp", done.stderr, re.M), done.stderr
