# SPDX-License-Identifier: Apache-2.0
"""torch.nn.parallel.comm and what is built on it: DataParallel, replicate, parallel_apply, scatter, gather."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import comm

import torch_fl
from helpers import D, run_ok, torch_version
from torch_fl._compat import data_parallel

pytestmark = pytest.mark.usefixtures("two_devices")
PATCHED = ("broadcast", "broadcast_coalesced", "scatter", "gather")


def devices_of(tensors: Any) -> list[str]:
    return [str(t.device) for t in tensors]


def pair(*shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(*shape, dtype=dtype).to(f"{D}:{i}") for i in range(2)]


def equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.detach().cpu(), expected.detach().cpu(), rtol=0, atol=0)


# The patch itself


def test_patches_are_in_force_and_listed() -> None:
    run_ok(
        """
        import torch
        from torch.nn.parallel import comm
        own = {name: getattr(comm, name) for name in ("broadcast", "broadcast_coalesced", "scatter", "gather")}
        import torch_fl
        from torch_fl import _compat
        listed = lambda: [p.name for p in _compat.patches() if p.name.startswith("torch.nn.parallel.comm.")]
        names = listed()
        assert names == [f"torch.nn.parallel.comm.{name}" for name in own], names
        for name, function in own.items():
            assert getattr(comm, name).__wrapped__ is function
        before = {name: getattr(comm, name) for name in own}
        _compat.apply_at_registration()
        assert before == {name: getattr(comm, name) for name in own} and listed() == names
        """,
    )


@pytest.mark.parametrize("name", PATCHED)
def test_gap_is_still_open(name: str) -> None:
    """Fails when torch's own function works for flagos: then its front in _compat/data_parallel.py can go."""
    own = getattr(comm, name).__wrapped__
    x = torch.arange(8.0, device=D)
    calls: dict[str, Callable[[], Any]] = {
        "broadcast": lambda: own(x, [0, 1]),
        "broadcast_coalesced": lambda: [t for row in own([x], [0, 1]) for t in row],
        "scatter": lambda: own(x, [0, 1]),
        "gather": lambda: [own([x, x.to("flagos:1")], 0, 1)],
    }
    wanted = ["flagos:1"] if name == "gather" else ["flagos:0", "flagos:1"]
    try:
        got = devices_of(calls[name]())
    except (RuntimeError, AttributeError) as error:
        got = [type(error).__name__]
    assert got != wanted, f"torch {torch.__version__} can do comm.{name} for flagos itself"


def test_other_devices_go_to_torch_unchanged() -> None:
    seen: list[tuple[Any, ...]] = []

    def own(*args: Any, **kwargs: Any) -> str:
        seen.append((*args, kwargs))
        return "torch"

    fronts = {name: getattr(data_parallel, f"_front_{name}")(own) for name in PATCHED}
    cpu, meta = torch.ones(4), torch.ones(4, device="meta")
    cuda = [torch.device("cuda", 0), torch.device("cuda", 1)]
    streams = [None, None]
    assert fronts["broadcast"](cpu, cuda) == "torch" and seen.pop() == (cpu, cuda, {"out": None})
    assert fronts["broadcast_coalesced"]([cpu], cuda, 7) == "torch" and seen.pop() == ([cpu], cuda, 7, {})
    assert fronts["scatter"](cpu, cuda, [1, 3], -1, streams) == "torch"
    assert seen.pop() == (cpu, cuda, [1, 3], -1, streams, {"out": None})
    assert fronts["gather"]([meta], 0, "cuda:1") == "torch" and seen.pop() == ([meta], 0, "cuda:1", {"out": None})
    # Devices that are named win over where the input lies, and a bare number means the input's kind of device.
    assert fronts["scatter"](torch.ones(4, device=D), ["cuda:0"]) == "torch"
    assert fronts["scatter"](meta, [0, 1]) == "torch"
    assert fronts["broadcast"](meta, [0, 1]) == "torch"
    seen.clear()
    assert devices_of(fronts["scatter"](cpu, iter(["flagos:1", "flagos:0"]))) == ["flagos:1", "flagos:0"]
    assert not seen


def test_bare_numbers_beside_cpu_tensors_follow_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    front = data_parallel._front_scatter(lambda *args, **kwargs: "torch")
    assert devices_of(front(torch.ones(4), [1, 0])) == ["flagos:1", "flagos:0"]
    monkeypatch.setattr(data_parallel, "_get_available_device_type", lambda: "cuda")
    assert front(torch.ones(4), [1, 0]) == "torch"


# Scatter and gather


@pytest.mark.parametrize("source", ["cpu", "flagos:0", "flagos:1"])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("sizes", [None, (2, 4), (5, 1)])
def test_scatter(source: str, dim: int, sizes: tuple[int, int] | None) -> None:
    x = torch.randn(6, 6)
    parts = x.chunk(2, dim) if sizes is None else x.split(sizes, dim)
    for devices in ([1, 0], ["flagos:1", torch.device("flagos:0")]):
        got = comm.scatter(x.to(source), devices, sizes, dim)
        assert isinstance(got, tuple) and devices_of(got) == ["flagos:1", "flagos:0"]
        for actual, expected in zip(got, parts, strict=True):
            equal(actual, expected)
    out = [torch.empty_like(part).to(f"{D}:{1 - i}") for i, part in enumerate(parts)]
    got = comm.scatter(x.to(source), dim=dim, out=out)
    assert all(a is b for a, b in zip(got, out, strict=True))
    for actual, expected in zip(out, parts, strict=True):
        equal(actual, expected)


def test_scatter_of_a_short_batch_strides_and_views() -> None:
    assert devices_of(comm.scatter(torch.ones(1, 3), [1, 0])) == ["flagos:1"]
    image = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in comm.scatter(image, [0, 1]))
    # A chunk that stays where it is shares memory with its source, as on CUDA.
    x = torch.zeros(4, device="flagos:1")
    comm.scatter(x, [0, 1])[1].fill_(3)
    assert x.tolist() == [0, 0, 3, 3]


def test_scatter_in_given_streams_leaves_the_current_ones() -> None:
    streams = [torch.Stream(f"{D}:0"), None]
    before = [torch.flagos.current_stream(i).stream_id for i in range(2)]
    x = torch.arange(6.0)
    got = comm.scatter(x, [0, 1], streams=streams)
    torch.flagos.current_stream(0).wait_stream(streams[0])
    equal(torch.cat([t.cpu() for t in got]), x)
    assert [torch.flagos.current_stream(i).stream_id for i in range(2)] == before
    assert torch.flagos.current_device() == 0


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("destination", [0, 1, "flagos:1", torch.device("flagos:0"), "cpu", None])
def test_gather(dim: int, destination: Any) -> None:
    a, b = torch.randn(3, 3), torch.randn(3, 3)
    inputs = (a.to("flagos:0"), b.to("flagos:1"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = comm.gather(iter(inputs), dim, destination)
    wanted = {"cpu": "cpu", None: "flagos:0", 0: "flagos:0", 1: "flagos:1"}.get(destination, str(destination))
    assert str(got.device) == wanted
    equal(got, torch.cat([a, b], dim))
    out = torch.empty(got.shape, device=got.device)
    assert comm.gather(inputs, dim, out=out) is out
    equal(out, got)


def test_gather_goes_to_the_current_device_and_minus_one_to_the_cpu() -> None:
    with torch.flagos.device(1):
        assert comm.gather(pair(2)).device == torch.device("flagos:1")
    with pytest.warns(FutureWarning, match="Using -1 to represent CPU tensor is deprecated") as caught:
        assert comm.gather(pair(2), 0, -1).device.type == "cpu"
    assert caught[0].filename == __file__


def test_gather_keeps_a_common_memory_format() -> None:
    images = [t.to(memory_format=torch.channels_last) for t in pair(2, 3, 4, 4)]
    assert comm.gather(images).is_contiguous(memory_format=torch.channels_last)
    images[1] = images[1].contiguous()
    assert comm.gather(images).is_contiguous()


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda x: comm.scatter(x, []), RuntimeError, r"Expected at least one device to scatter to"),
        (
            lambda x: comm.scatter(x, [0, 1], [4]),
            RuntimeError,
            r"Expected devices and chunk_sizes to be of same length, but got len\(devices\) = 2 and "
            r"len\(chunk_sizes\) = 1",
        ),
        (lambda x: comm.scatter(x, [0, 1], [1, 1]), RuntimeError, r"split_with_sizes expects split_sizes to sum"),
        (lambda x: comm.scatter(x, [0, 1], dim=2), IndexError, r"Dimension out of range"),
        (lambda x: comm.scatter(x, [0, -1]), RuntimeError, r"Expected non-negative device index, but got -1"),
        (lambda x: comm.scatter(x, ["flagos:0", "cpu"]), ValueError, r"Expected a non cpu device, but got: cpu"),
        (lambda x: comm.scatter(x, [D]), ValueError, r"Expected a torch.device with a specified index or an integer"),
        (lambda x: comm.scatter(x, [0], out=[x]), RuntimeError, r"'devices' must not be specified when 'out' is"),
        (lambda x: comm.scatter(x, None, [4], out=[x]), RuntimeError, r"'chunk_sizes' must not be specified when"),
        (lambda x: comm.scatter(x, out=[]), RuntimeError, r"Expected at least one output tensor to scatter to"),
        (
            lambda x: comm.scatter(x, out=[x[:2].cpu(), x[2:]]),
            RuntimeError,
            r"Expected all output tensors to be flagos tensors, but output tensor at index 0 has device 'cpu'",
        ),
        (
            lambda x: comm.scatter(x, out=[x[:2], x[2:, :2]]),
            RuntimeError,
            r"Output tensor at index 1 has incorrect shape: \[2, 2\]. Expected same shape except for scatter dim 0 "
            r"as the source tensor: \[4, 3\]",
        ),
        (
            lambda x: comm.scatter(x, dim=-2, out=[x[:2], x[:1]]),
            RuntimeError,
            r"Total size for output tensors along scatter dim 0 does not match the source tensor size at dim 0. "
            r"Expected 4, but got total size 3",
        ),
        (
            lambda x: comm.scatter(x.cpu(), [0], streams=[torch.Stream("flagos:1")]),
            RuntimeError,
            r"Expected the device associated with the stream at index 0 \(was 1\) to match the device supplied at "
            r"that index \(expected 0\)",
        ),
        (lambda x: comm.gather([]), RuntimeError, r"Expected at least one tensor to gather from"),
        (
            lambda x: comm.gather([x, x.cpu()]),
            RuntimeError,
            r"Expected all input tensors to be flagos tensors, but tensor at index 1 has device cpu",
        ),
        (
            lambda x: comm.gather([x, x[0]]),
            RuntimeError,
            r"Expected all input tensors to have the same number of dimensions, but tensor at index 1 has 1 "
            r"dimensions, \(expected 2\)",
        ),
        (
            lambda x: comm.gather([x, x[:, :2]]),
            RuntimeError,
            r"Input tensor at index 1 has invalid shape \[4, 2\], but expected \[4, 3\]",
        ),
        (lambda x: comm.gather([x], 2), IndexError, r"Dimension out of range"),
        (lambda x: comm.gather([x], destination=0, out=x), RuntimeError, r"'destination' must not be specified when"),
        (
            lambda x: comm.gather([x, x], out=x),
            RuntimeError,
            r"Expected out tensor to have shape \[8, 3\], but got \[4, 3\]",
        ),
        (lambda x: comm.broadcast(x), RuntimeError, r"Exactly one of 'devices' and 'out' must be specified"),
        (lambda x: comm.broadcast(x, [0], out=[x]), RuntimeError, r"Exactly one of 'devices' and 'out' must be"),
        (lambda x: comm.broadcast(x, [0, -1]), RuntimeError, r"Expected non-negative device index, but got -1"),
        (
            lambda x: comm.broadcast(x, out=[x, x.cpu()]),
            RuntimeError,
            r"Expected all output tensors to be flagos tensors, but output tensor at index 1 has device 'cpu'",
        ),
        (
            lambda x: comm.broadcast(x, out=[x[0]]),
            RuntimeError,
            r"Expected all output tensors to have same shape as the source tensor \[4, 3\], but output tensor at "
            r"index 0 has shape \[3\]",
        ),
        (
            lambda x: comm.broadcast_coalesced([x, x.to("flagos:1")], [0, 1]),
            RuntimeError,
            r"All tensors must be on devices\[0\]: 0",
        ),
        (lambda x: comm.reduce_add([x, x.cpu()]), AssertionError, r"reduce_add expects all inputs to be on GPUs"),
        (lambda x: comm.reduce_add([x, x[0]], 0), ValueError, r"input 1 has invalid size: got 3, but expected 4x3"),
        (lambda x: comm.reduce_add([x, x], 1), RuntimeError, r"destination to be on the same GPU with one of"),
    ],
)
def test_error_texts_are_those_of_torch(call: Callable[[torch.Tensor], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call(torch.ones(4, 3, device=D))


# Broadcast and reduce


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("source", ["cpu", "flagos:0"])
def test_broadcast(source: str, dtype: torch.dtype) -> None:
    x = (torch.randn(3, 4) * 4).to(dtype)
    expected = torch.view_as_real(x) if dtype.is_complex else x  # torch hands out complex tensors as real ones
    y = x.to(source)
    got = comm.broadcast(y, (0, 1))
    assert devices_of(got) == ["flagos:0", "flagos:1"]
    for t in got:
        equal(t, expected)
    if source != "cpu" and not dtype.is_complex:
        assert got[0] is y
    out = [torch.empty_like(expected).to(f"{D}:{i}") for i in range(2)]
    assert all(a is b for a, b in zip(comm.broadcast(y, out=out), out, strict=True))
    for t in out:
        equal(t, expected)


@pytest.mark.parametrize("buffer_size", [8, 10485760])
def test_coalesced_calls_keep_order_kinds_and_values(buffer_size: int) -> None:
    sparse = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (4,), check_invariants=True)
    tensors = [
        torch.randn(3, 2),
        torch.arange(5),
        sparse,
        torch.randn(2, 2).bfloat16(),
        torch.randn(()),
        torch.randn(0, 3),
        sparse * 2,
        torch.randn(4, 2).t(),
    ]
    sources = [t.to(D) for t in tensors]
    rows = comm.broadcast_coalesced(sources, [0, 1], buffer_size)
    assert all(a is b for a, b in zip(rows[0], sources, strict=True))
    for copied, expected in zip(rows[1], tensors, strict=True):
        assert copied.device == torch.device("flagos:1") and copied.dtype == expected.dtype
        assert copied.is_sparse == expected.is_sparse and copied.shape == expected.shape
        equal(copied.to_dense(), expected.to_dense())
    sums = comm.reduce_add_coalesced(rows, 1, buffer_size)
    for total, expected in zip(sums, tensors, strict=True):
        assert total.device == torch.device("flagos:1") and total.dtype == expected.dtype
        equal(total.to_dense(), (expected + expected).to_dense())


def test_coalesced_copies_have_version_counters_of_their_own() -> None:
    first, second = comm.broadcast_coalesced([torch.zeros(2, device=D), torch.zeros(2, device=D)], [0, 1])[1]
    before = second._version
    first.add_(1)
    assert second._version == before and first._version > before and second.sum().item() == 0


@pytest.mark.parametrize("destination", [0, 1, None])
def test_reduce_add(destination: int | None) -> None:
    a, b = pair(3, 3)
    got = comm.reduce_add([a, b], destination)
    assert got.get_device() == (destination or 0)
    equal(got, a.cpu() + b.cpu())


# Modules


@pytest.mark.skipif(torch_version() < (2, 11), reason="torch 2.10 scatters and gathers complex tensors as real ones")
def test_complex_tensors_and_autograd_of_scatter_and_gather() -> None:
    x = torch.randn(5, 3, dtype=torch.complex64, device=D, requires_grad=True)
    parts = nn.parallel.scatter(x, [0, 1])
    assert devices_of(parts) == ["flagos:0", "flagos:1"] and [len(p) for p in parts] == [3, 2]
    y = nn.parallel.gather([p * p for p in parts], "flagos:1")
    assert y.device == torch.device("flagos:1") and y.is_complex()
    y.abs().sum().backward()
    reference = x.detach().cpu().requires_grad_()
    (reference * reference).abs().sum().backward()
    assert x.grad is not None and x.grad.device == torch.device("flagos:0")
    torch.testing.assert_close(x.grad.cpu(), reference.grad)


class Mixed(nn.Module):
    """Buffers that are read, written and absent, a shared weight, keyword input, nested output."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.first = nn.Linear(4, 4)
        self.second = self.first
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.register_buffer("nothing", None)

    def forward(self, x: torch.Tensor, *, shift: torch.Tensor, times: int = 1) -> dict[str, Any]:
        hidden = F.relu(self.norm(self.conv(x))).mean((2, 3)) * self.scale
        out = self.second(self.first(hidden)) + shift * times
        return {"out": out, "both": (out.sum(1), [hidden])}


def by_chunks(model: Mixed, x: torch.Tensor, shift: torch.Tensor, times: int) -> torch.Tensor:
    """What DataParallel means, on one device: only the first chunk updates the buffers."""
    own = dict(model.named_buffers())
    buffers = [own, {name: buffer.clone() for name, buffer in own.items()}]
    chunks = zip(buffers, x.chunk(2), shift.chunk(2), strict=False)
    outputs = [torch.func.functional_call(model, b, (a,), {"shift": s, "times": times})["out"] for b, a, s in chunks]
    return torch.cat(outputs)


@pytest.mark.parametrize("inputs", ["cpu", "flagos:0", "flagos:1"])
@pytest.mark.parametrize("batch", [8, 5, 1])
def test_training_equals_one_device(batch: int, inputs: str) -> None:
    single = Mixed()
    parallel = nn.DataParallel(copy.deepcopy(single).to(D))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (single, parallel)]
    for _ in range(3):
        x, shift = torch.randn(batch, 2, 5, 5), torch.randn(batch, 1)
        expected = by_chunks(single, x, shift, 2)
        result = parallel(x.to(inputs), shift=shift.to(inputs), times=2)
        assert result["out"].device == torch.device("flagos:0") and result["both"][0].shape == (batch,)
        torch.testing.assert_close(result["out"].cpu(), expected)
        for loss in (expected.square().mean(), result["out"].square().mean()):
            loss.backward()
        for (name, p), q in zip(single.named_parameters(), parallel.module.parameters(), strict=True):
            assert p.grad is not None and q.grad is not None and q.grad.device == torch.device("flagos:0"), name
            torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-4, atol=1e-5)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for (name, b), c in zip(single.named_buffers(), parallel.module.buffers(), strict=True):
        torch.testing.assert_close(c.cpu(), b, msg=name)
    assert torch.flagos.current_device() == 0


def test_evaluation_without_gradients_and_other_output_devices() -> None:
    model = Mixed().eval()
    x, shift = torch.randn(7, 2, 5, 5), torch.randn(7, 1)
    expected = model(x, shift=shift)["out"].detach()
    moved = copy.deepcopy(model).to(D)
    with torch.no_grad():
        result = nn.DataParallel(moved)(x, shift=shift)["out"]
        torch.testing.assert_close(result.cpu(), expected)
        assert not result.requires_grad
    result = nn.DataParallel(moved, output_device=1)(x.to(D), shift=shift.to(D))["out"]
    assert result.device == torch.device("flagos:1") and result.requires_grad
    backwards = nn.DataParallel(moved.to("flagos:1"), device_ids=[1, 0])(x, shift=shift)["out"]
    assert backwards.device == torch.device("flagos:1")
    torch.testing.assert_close(backwards.cpu(), expected)
    with pytest.raises(RuntimeError, match=r"module must have its parameters and buffers on device flagos:0"):
        nn.DataParallel(moved)(x, shift=shift)


def test_recurrent_module_and_functional_form() -> None:
    model = nn.LSTM(3, 4, num_layers=2, batch_first=True)
    x = torch.randn(6, 5, 3)  # an even batch: the hidden state has it in dimension 1 and is joined along dimension 0
    moved = copy.deepcopy(model).to(D)
    expected, y = model(x)[0], nn.parallel.data_parallel(moved, x.to(D))[0]
    torch.testing.assert_close(y.cpu(), expected)
    expected.square().sum().backward()
    y.square().sum().backward()
    for p, q in zip(model.parameters(), moved.parameters(), strict=True):
        assert q.grad is not None and p.grad is not None
        torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-4, atol=1e-5)


def test_scalar_outputs_become_a_vector_and_errors_name_the_replica() -> None:
    class Loss(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.get_device() == 1 and len(x) == 1:
                raise ValueError("too short")
            return x.sum()

    with pytest.warns(UserWarning, match="all input tensors were scalars"):
        assert nn.DataParallel(Loss())(torch.ones(4, 2, device=D)).tolist() == [4, 4]
    with pytest.raises(ValueError, match=r"(?s)in replica 1 on device 1.*too short"):
        nn.DataParallel(Loss())(torch.ones(3, 2, device=D))


def test_second_derivatives() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    moved = copy.deepcopy(model).to(D)
    x = torch.randn(6, 3)
    grads = []
    for module, value in ((model, x.clone()), (nn.DataParallel(moved), x.to(D))):
        value.requires_grad_()
        (first,) = torch.autograd.grad(module(value).sum(), value, create_graph=True)
        first.square().sum().backward()
        # The last bias has no part in it: no gradient on one device, zeros from the functions of DataParallel.
        grads.append([torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()])
    assert all(g.abs().sum() > 0 for g in grads[0][:3])
    for p, q in zip(*grads, strict=True):
        torch.testing.assert_close(q.cpu(), p)


def test_protected_and_poisoned_memory() -> None:
    """Copies run on the workers of the streams: a missing wait or an early free reads poison."""
    run_ok(
        """
        import torch, torch_fl
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
        x = torch.randn(257, 256)
        expected = model(x)
        expected.square().sum().backward()
        grads = [p.grad.clone() for p in model.parameters()]
        parallel = torch.nn.DataParallel(model.to("flagos"))
        for _ in range(5):
            for inputs in (x, x.to("flagos"), x.to("flagos:1")):
                parallel.zero_grad()
                y = parallel(inputs)
                torch.testing.assert_close(y.cpu(), expected)
                y.square().sum().backward()
                for p, g in zip(model.parameters(), grads):
                    torch.testing.assert_close(p.grad.cpu(), g, rtol=1e-4, atol=1e-3)
        """,
        FLAGOS_HOST_DEVICES="2",
        FLAGOS_HOST_PROTECT="1",
        FLAGOS_HOST_POISON="1",
    )


def test_no_copying_fallback_is_involved() -> None:
    model = nn.DataParallel(Mixed().to(D))
    torch_fl.reset_counters()
    model(torch.randn(4, 2, 5, 5), shift=torch.randn(4, 1))["out"].sum().backward()
    assert [row for row in torch_fl.counters() if row["route"] == "cpu"] == []
