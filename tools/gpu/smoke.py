# SPDX-License-Identifier: Apache-2.0
"""First questions to a machine with an accelerator: does flagos run there, and as the native backend does?"""

from __future__ import annotations

import gc
import io
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import common
import torch
import torch.nn.functional as F
from conformance.ops.sides import on_side

import torch_fl

KIND = common.native_kind()
NATIVE = getattr(torch, KIND)
CHECKS: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a check."""
    CHECKS.append(function)
    return function


def equal(a: torch.Tensor, b: torch.Tensor) -> None:
    """Raises unless the values are equal bit for bit and the metadata agree."""
    assert a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype, (a.shape, b.shape, a.stride())
    left, right = a.detach().cpu(), b.detach().cpu()
    assert torch.equal(left, right), f"max difference {(left.double() - right.double()).abs().max()}"


def native(function: Callable[[str], Any]) -> Any:
    """Runs on the native device, which is torch's accelerator meanwhile: else its backward pass cannot run."""
    torch.manual_seed(0)
    with on_side("reference", torch.device(KIND)):
        return function(KIND)


def both(function: Callable[[str], torch.Tensor]) -> None:
    """Runs on both devices with the same seed and compares."""
    want = native(function)
    torch.manual_seed(0)
    got = function("flagos")
    assert got.device.type == "flagos", got.device
    equal(got, want)


@check
def counts() -> None:
    assert torch.flagos.is_available() and torch.flagos.device_count() == NATIVE.device_count()
    assert torch.flagos.get_device_name() == NATIVE.get_device_name()
    assert torch.flagos.current_device() == NATIVE.current_device()


@check
def arithmetic() -> None:
    both(lambda d: torch.arange(12.0, device=d).reshape(3, 4) * 2 + 1)
    both(lambda d: torch.ones(64, 64, device=d) @ torch.full((64, 64), 0.5, device=d))


@check
def random_numbers() -> None:
    for draw in (
        lambda d: torch.randn(1000, device=d),
        lambda d: torch.rand(1000, device=d),
        lambda d: torch.randperm(1000, device=d),
        lambda d: torch.randint(0, 100, (1000,), device=d),
        lambda d: torch.empty(1000, device=d).exponential_(),
        lambda d: torch.bernoulli(torch.full((1000,), 0.3, device=d)),
        lambda d: torch.multinomial(torch.ones(100, device=d), 50),
        lambda d: F.dropout(torch.ones(1000, device=d), 0.5),
    ):
        both(draw)


@check
def generators() -> None:
    a = torch.Generator("flagos").manual_seed(7)
    b = torch.Generator(KIND).manual_seed(7)
    equal(torch.randn(64, device="flagos", generator=a), torch.randn(64, device=KIND, generator=b))
    torch.flagos.manual_seed(3)
    state = torch.flagos.get_rng_state()
    first = torch.randn(8, device="flagos")
    torch.flagos.set_rng_state(state)
    equal(torch.randn(8, device="flagos"), first)


@check
def conversion() -> None:
    x = torch.randn(4, 6, device="flagos")
    n = torch_fl.to_native(x.t()[1:])
    assert n.device.type == KIND and n.data_ptr() == x.t()[1:].data_ptr()
    n.fill_(3.0)
    assert (x[:, 1:] == 3).all().item()
    back = torch_fl.from_native(n)
    assert back.device.type == "flagos" and back.data_ptr() == n.data_ptr()
    assert torch_fl.to_native(n) is n and torch_fl.from_native(x) is x
    y = torch.randn(3, device="flagos", requires_grad=True)
    try:
        torch_fl.to_native(y)
    except RuntimeError:
        pass
    else:
        raise AssertionError("a tensor that requires grad was converted")


@check
def dlpack() -> None:
    x = torch.arange(6.0, device="flagos")
    n = torch.from_dlpack(x)
    assert n.device.type == KIND and n.data_ptr() == x.data_ptr()
    assert torch_fl.from_native(torch.from_dlpack(torch.arange(4, device=KIND))).device.type == "flagos"


@check
def mixed_process() -> None:
    x, n = torch.randn(8, 8, device="flagos"), torch.randn(8, 8, device=KIND)
    assert x.to(KIND).device.type == KIND and n.to("flagos").device.type == "flagos"
    equal(x.to(KIND).to("flagos"), x)
    z = torch.zeros(8, 8, device=KIND)
    z.copy_(x)
    equal(z, x)
    for wrong in (lambda: x + n, lambda: x @ torch.randn(8, 8), lambda: torch.cat([x, torch.randn(8, 8)])):
        try:
            wrong()
        except RuntimeError as error:
            assert "device" in str(error), error
        else:
            raise AssertionError("mixed devices were accepted")
    assert (x + torch.tensor(1.0)).device.type == "flagos"
    assert x[torch.tensor([0, 2])].shape == (2, 8)


@check
def one_pool() -> None:
    gc.collect()
    before = NATIVE.memory_allocated()
    x = torch.empty(1 << 20, device="flagos")
    assert NATIVE.memory_allocated() - before == 4 << 20
    assert torch.flagos.memory_allocated() == NATIVE.memory_allocated()
    assert torch.accelerator.memory_allocated() == NATIVE.memory_allocated()
    pointer = x.data_ptr()
    del x
    assert NATIVE.memory_allocated() == before
    assert torch.empty(1 << 20, device=KIND).data_ptr() == pointer, "the block was not reused"
    torch.flagos.empty_cache()
    assert torch.flagos.mem_get_info() == NATIVE.mem_get_info()
    torch.flagos.memory_summary()
    assert torch.flagos.memory_stats()["allocated_bytes"] == before


@check
def streams() -> None:
    s = torch.flagos.Stream()
    assert torch.flagos.current_stream().stream_id == NATIVE.current_stream().stream_id
    with torch.flagos.stream(s):
        assert NATIVE.current_stream().stream_id == s.stream_id
        assert s.native_handle == NATIVE.current_stream().cuda_stream != 0
        x = torch.ones(1000, device="flagos")
        event = s.record_event()
    torch.flagos.current_stream().wait_event(event)
    x.record_stream(torch.flagos.current_stream())
    x.record_stream(NATIVE.current_stream())
    assert x.sum().item() == 1000
    a, b = torch.flagos.Event(enable_timing=True), torch.flagos.Event(enable_timing=True)
    a.record()
    torch.randn(2048, 2048, device="flagos") @ torch.randn(2048, 2048, device="flagos")
    b.record()
    b.synchronize()
    assert a.elapsed_time(b) > 0
    external = torch.flagos.ExternalStream(s.native_handle)
    with torch.flagos.stream(external):
        assert NATIVE.current_stream().cuda_stream == s.native_handle
    torch.flagos.synchronize()


@check
def pinned() -> None:
    h = torch.randn(1 << 16).pin_memory()
    assert h.is_pinned()
    d = h.to("flagos", non_blocking=True)
    back = torch.empty(1 << 16, pin_memory=True)
    back.copy_(d, non_blocking=True)
    torch.flagos.synchronize()
    assert torch.equal(h, back)


@check
def views_and_in_place() -> None:
    def run(d: str) -> torch.Tensor:
        x = torch.arange(24.0, device=d).reshape(4, 6).clone().requires_grad_(True)
        y = x * 1
        y[1:3].mul_(2)
        y.t()[0].add_(1)
        (y.view(-1)[::2].square().sum() + y.diagonal().prod()).backward()
        return x.grad

    both(run)
    x = torch.zeros(4, device="flagos")
    x.resize_(100)
    assert x.numel() == 100
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(400)
    out = torch.empty(0, device="flagos")
    torch.add(torch.ones(5, device="flagos"), 1, out=out)
    assert out.tolist() == [2.0] * 5


def train(d: str, build: Callable[[], torch.nn.Module], x: torch.Tensor, steps: int = 5, **options: object) -> list:
    """Losses of a few steps on one device."""
    torch.manual_seed(0)
    model = build().to(d)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    x = x.to(d)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@check
def training() -> None:
    def mlp() -> torch.nn.Module:
        first, last = torch.nn.Linear(64, 128), torch.nn.Linear(128, 8)
        return torch.nn.Sequential(first, torch.nn.GELU(), torch.nn.Dropout(0.1), last)

    def cnn() -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, padding=1),
            torch.nn.BatchNorm2d(16),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(16, 8, 3),
            torch.nn.Flatten(),
            torch.nn.LazyLinear(4),
        )

    torch.backends.cudnn.deterministic = True
    torch.manual_seed(1)
    flat, image = torch.randn(32, 64), torch.randn(4, 3, 16, 16)
    for build, x in ((mlp, flat), (cnn, image)):
        for options in ({}, {"fused": True}, {"foreach": False}):
            want = native(lambda d, b=build, i=x, o=options: train(d, b, i, **o))
            got = train("flagos", build, x, **options)
            assert want == got, (build.__name__, options, want, got)
    torch.backends.cudnn.deterministic = False


@check
def recurrent() -> None:
    for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
        for options in ({}, {"bidirectional": True, "dropout": 0.3}, {"proj_size": 5} if kind is torch.nn.LSTM else {}):

            def run(d: str, kind: type = kind, options: dict = options) -> torch.Tensor:
                torch.manual_seed(0)
                layer = kind(8, 16, num_layers=2, **options).to(d)
                x = torch.randn(7, 3, 8).to(d).requires_grad_(True)
                with warnings.catch_warnings():
                    warnings.simplefilter("error")  # weights that do not lie in one buffer warn
                    out = layer(x)[0]
                out.square().sum().backward()
                return torch.cat([t.reshape(-1) for t in (out.detach(), x.grad, *(p.grad for p in layer.parameters()))])

            both(run)


@check
def recurrent_packed_and_autocast() -> None:
    def packed(d: str) -> torch.Tensor:
        torch.manual_seed(0)
        layer = torch.nn.LSTM(8, 16).to(d)
        x = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(7, 3, 8).to(d), torch.tensor([7, 5, 2]))
        return layer(x)[0].data

    both(packed)

    def autocast(d: str) -> torch.Tensor:
        torch.manual_seed(0)
        layer = torch.nn.LSTM(8, 16).to(d)
        with torch.autocast(d, dtype=torch.float16):
            return layer(torch.randn(7, 3, 8).to(d))[0]

    both(autocast)


@check
def attention() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for head in (64, 40, 37):
            for causal in (False, True):

                def run(d: str, dtype: torch.dtype = dtype, head: int = head, causal: bool = causal) -> torch.Tensor:
                    torch.manual_seed(0)
                    q, k, v = (torch.randn(2, 4, 128, head).to(d, dtype).requires_grad_(True) for _ in range(3))
                    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
                    out.float().sum().backward()
                    return torch.cat([out.detach(), q.grad, k.grad, v.grad])

                both(run)


@check
def autocast() -> None:
    def run(d: str) -> torch.Tensor:
        torch.manual_seed(0)
        layer, x = torch.nn.Linear(32, 32).to(d), torch.randn(8, 32).to(d)
        with torch.autocast(d, dtype=torch.bfloat16):
            y = layer(x)
            assert y.dtype is torch.bfloat16
            return F.softmax(y, -1)

    both(run)


@check
def sparse() -> None:
    def coo(d: str) -> torch.Tensor:
        i = torch.tensor([[0, 1, 1], [2, 0, 2]], device=d)
        s = torch.sparse_coo_tensor(i, torch.tensor([3.0, 4.0, 5.0], device=d), (2, 3))
        return torch.sparse.mm(s.coalesce() + s, torch.ones(3, 2, device=d))

    def csr(d: str) -> torch.Tensor:
        a = torch.tensor([[1.0, 0, 2], [0, 3.0, 0]], device=d).to_sparse_csr()
        return a @ torch.ones(3, 2, device=d)

    both(coo)
    both(csr)
    assert torch.eye(3, device="flagos").to_sparse().device.type == "flagos"


@check
def foreach_and_fused() -> None:
    def run(d: str) -> torch.Tensor:
        torch.manual_seed(0)
        xs = [torch.randn(n).to(d) for n in (3, 50, 1000)]
        torch._foreach_mul_(xs, 2.0)
        return torch.cat(torch._foreach_add(xs, torch._foreach_sqrt(torch._foreach_abs(xs))))

    both(run)


@check
def scaled_matmul() -> None:
    def run(d: str) -> torch.Tensor:
        torch.manual_seed(0)
        a = torch.randn(32, 64).to(d, torch.float8_e4m3fn)
        b = torch.randn(32, 64).to(d, torch.float8_e4m3fn).t()
        one = torch.ones((), device=d)
        return torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)

    both(run)


@check
def save_and_load() -> None:
    buffer = io.BytesIO()
    torch.save({"x": torch.arange(3.0, device="flagos")}, buffer)
    buffer.seek(0)
    assert torch.load(buffer)["x"].device.type == "flagos"


@check
def graph_capture() -> None:
    x = torch.zeros(1000, device="flagos")
    side = torch.flagos.Stream()
    with torch.flagos.stream(side):
        for _ in range(2):
            x.add_(1)
    torch.flagos.synchronize()
    g = NATIVE.CUDAGraph()
    with NATIVE.graph(g):
        y = x * 2
        x.add_(1)
    x.zero_()
    for _ in range(3):
        g.replay()
    torch.flagos.synchronize()
    assert x[0].item() == 3 and y[0].item() == 4


@check
def out_of_memory() -> None:
    for _ in range(2):
        try:
            torch.empty(1 << 50, device="flagos")
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError("no out-of-memory error")
        assert torch.ones(10, device="flagos").sum().item() == 10


@check
def cpu_fallback() -> None:
    torch.flagos.synchronize()
    torch_fl.set_fallback_policy("allow")
    x = torch.tensor([1.0, 2.0, 1.0], device="flagos")
    h = torch.histogram(x, bins=4)  # no kernel but the CPU's
    assert h.hist.device.type == "flagos" and h.hist.sum().item() == 3
    torch_fl.set_fallback_policy("warn")


def main() -> int:
    """Runs every check; the exit code says whether all passed."""
    options = common.arguments(__doc__ or "")
    results = {}
    for function in CHECKS:
        try:
            function()
            results[function.__name__] = "pass"
        except Exception as error:  # noqa: BLE001 - one failed check must not hide the others
            traceback.print_exc()
            results[function.__name__] = f"{type(error).__name__}: {error}"
        print(f"{function.__name__}: {results[function.__name__]}"[:300], flush=True)
    failed = [name for name, result in results.items() if result != "pass"]
    print(f"smoke: {len(results) - len(failed)} of {len(results)} pass; failed: {', '.join(failed) or 'none'}")
    common.write(options.json, "smoke", {"checks": results})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
