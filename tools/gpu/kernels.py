# SPDX-License-Identifier: Apache-2.0
"""Which kernels run: the profiler's kernel names on flagos and on the native backend, for what composites choose."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import common
import torch
import torch.nn.functional as F
from conformance.ops.sides import on_side
from torch.profiler import ProfilerActivity, profile

KIND = common.native_kind()
BACKEND = getattr(torch, KIND)
CHUNK = 60  # cases of one profile
SHAPES = [  # batch, heads, heads of key and value, query length, key length, head dimension
    (2, 4, 4, 128, 128, 64),
    (2, 4, 4, 128, 128, 128),
    (1, 2, 2, 64, 64, 40),
    (1, 2, 2, 64, 64, 37),
    (1, 2, 2, 64, 64, 256),
    (1, 8, 2, 128, 128, 64),
    (1, 4, 4, 1, 256, 64),
    (1, 4, 4, 333, 77, 80),
    (4, 1, 1, 32, 32, 8),
    (1, 2, 2, 1024, 1024, 64),
    (1, 2, 2, 16, 16, 512),
    (1, 16, 1, 64, 64, 96),
]

Case = tuple[str, Callable[[str], Any]]


def attention_cases() -> Iterator[Case]:
    """12 shapes x mask x dropout x dtype, forward and backward."""
    for shape, mask, dropout, dtype in itertools.product(
        SHAPES, ("none", "causal", "bool", "float"), (0.0, 0.1), (torch.float16, torch.bfloat16, torch.float32)
    ):

        def run(d: str, shape: tuple = shape, mask: str = mask, dropout: float = dropout, dtype: Any = dtype) -> Any:
            batch, heads, kv, length, keys, head = shape
            torch.manual_seed(0)
            q = torch.randn(batch, heads, length, head).to(d, dtype).requires_grad_(True)
            k, v = (torch.randn(batch, kv, keys, head).to(d, dtype).requires_grad_(True) for _ in range(2))
            given = None
            if mask in ("bool", "float"):
                given = torch.ones(length, keys, dtype=torch.bool).tril().to(d)
                given = given if mask == "bool" else torch.zeros(length, keys).to(d, dtype)
            out = F.scaled_dot_product_attention(
                q, k, v, given, dropout_p=dropout, is_causal=mask == "causal", enable_gqa=heads != kv
            )
            out.float().sum().backward()
            return out.detach(), q.grad, k.grad, v.grad

        yield f"sdpa {shape} mask={mask} dropout={dropout} {str(dtype)[6:]}", run


def layer_cases() -> Iterator[Case]:
    """Convolution, recurrent layers, batch norm, CTC loss, grid sampler, fused and foreach optimizers."""

    def module(name: str, build: Callable[[], Any], *shape: int, dtype: torch.dtype = torch.float32) -> Case:
        def run(d: str) -> Any:
            torch.manual_seed(0)
            layer, x = build().to(d, dtype), torch.randn(*shape).to(d, dtype).requires_grad_(True)
            out = layer(x)
            out = out[0] if isinstance(out, tuple) else out
            out.float().square().sum().backward()
            return out.detach(), x.grad, [p.grad for p in layer.parameters()]

        return f"{name} {str(dtype)[6:]}", run

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        yield module("conv2d", lambda: torch.nn.Conv2d(8, 16, 3, padding=1), 4, 8, 16, 16, dtype=dtype)
        yield module("conv_transpose2d", lambda: torch.nn.ConvTranspose2d(8, 16, 3, stride=2), 4, 8, 9, 9, dtype=dtype)
        yield module("conv depthwise", lambda: torch.nn.Conv2d(8, 8, 3, groups=8), 4, 8, 16, 16, dtype=dtype)
        yield module("batch_norm2d", lambda: torch.nn.BatchNorm2d(8), 4, 8, 16, 16, dtype=dtype)
        yield module("batch_norm2d eval", lambda: torch.nn.BatchNorm2d(8).eval(), 4, 8, 16, 16, dtype=dtype)
        yield module("lstm", lambda: torch.nn.LSTM(8, 16, num_layers=2), 7, 4, 8, dtype=dtype)
        yield module("gru", lambda: torch.nn.GRU(8, 16, bidirectional=True), 7, 4, 8, dtype=dtype)
    yield module("conv3d", lambda: torch.nn.Conv3d(4, 8, 3), 2, 4, 8, 8, 8)
    yield module("conv1d", lambda: torch.nn.Conv1d(4, 8, 3), 2, 4, 32)
    yield module("rnn", lambda: torch.nn.RNN(8, 16), 7, 4, 8)
    yield module("lstm dropout", lambda: torch.nn.LSTM(8, 16, num_layers=2, dropout=0.5), 7, 4, 8)
    yield module("batch_norm1d", lambda: torch.nn.BatchNorm1d(8), 4, 8, 16)
    yield module("layer_norm", lambda: torch.nn.LayerNorm(32), 4, 32)
    yield module("rms_norm", lambda: torch.nn.RMSNorm(32), 4, 32)
    yield module("group_norm", lambda: torch.nn.GroupNorm(2, 8), 4, 8, 16)
    yield module("encoder layer", lambda: torch.nn.TransformerEncoderLayer(32, 4, batch_first=True), 2, 9, 32)

    def encoder_fast_path(d: str) -> Any:
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True).to(d).eval()
        with torch.no_grad():
            return layer(torch.randn(2, 9, 32).to(d))

    yield "encoder layer fast path", encoder_fast_path

    def ctc(d: str, dtype: torch.dtype, on_cpu: bool) -> Any:
        torch.manual_seed(0)
        x = torch.randn(20, 3, 10).log_softmax(-1).to(d).requires_grad_(True)
        targets = torch.randint(1, 10, (12,), dtype=dtype)
        loss = F.ctc_loss(x, targets if on_cpu else targets.to(d), [20, 20, 20], [4, 4, 4])
        loss.backward()
        return loss.detach(), x.grad

    yield "ctc_loss int32 targets on the CPU", lambda d: ctc(d, torch.int32, True)
    yield "ctc_loss int64 targets", lambda d: ctc(d, torch.int64, False)

    for align in (True, False):

        def grid(d: str, align: bool = align) -> Any:
            torch.manual_seed(0)
            x, g = torch.randn(2, 3, 8, 8).to(d).requires_grad_(True), (torch.rand(2, 5, 5, 2) * 2 - 1).to(d)
            out = F.grid_sample(x, g, align_corners=align)
            out.sum().backward()
            return out.detach(), x.grad

        yield f"grid_sample align_corners={align}", grid

    for kind, options in itertools.product(
        (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad),
        ({"fused": True}, {"foreach": True}, {"foreach": False}),
    ):

        def step(d: str, kind: Any = kind, options: dict = options) -> Any:
            torch.manual_seed(0)
            parameters = [torch.randn(n).to(d).requires_grad_(True) for n in (10, 1000)]
            optimizer = kind(parameters, lr=0.1, **options)
            for p in parameters:
                p.grad = torch.ones_like(p)
            optimizer.step()
            return [p.detach() for p in parameters]

        yield f"{kind.__name__} {options}", step

    def fp8(d: str) -> Any:
        a, b = (torch.ones(32, 64).to(d, torch.float8_e4m3fn) for _ in range(2))
        one = torch.ones((), device=d)
        return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)

    yield "_scaled_mm", fp8

    def grouped(d: str) -> Any:
        torch.manual_seed(0)
        a, b = torch.randn(32, 64).to(d, torch.bfloat16), torch.randn(2, 64, 64).to(d, torch.bfloat16)
        return torch._grouped_mm(a, b, torch.tensor([16, 32], dtype=torch.int32).to(d))

    yield "_grouped_mm", grouped


def kernels(cases: list[Case], d: str) -> list[tuple[list[str], Any, str]]:
    """For each case: sorted names of the kernels it ran on `d`, its result, and the error if it raised.

    One profile for all of them; a kernel that does nothing marks where a case ends.
    """
    outcomes: list[tuple[Any, str]] = []
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as p:
        for _, function in cases:
            try:
                outcomes.append((function(d), ""))
            except Exception as e:  # noqa: BLE001 - both sides may refuse
                outcomes.append((None, type(e).__name__))
            torch.accelerator.synchronize()
            BACKEND._sleep(1)
            torch.accelerator.synchronize()
    device = [e for e in p.events() if e.device_type != torch.autograd.DeviceType.CPU]
    device.sort(key=lambda e: e.time_range.start)
    found: list[list[str]] = [[]]
    for event in device:
        if "spin_kernel" in event.name:
            found.append([])
        elif not event.name.startswith(("Mem", "Context Sync")):
            found[-1].append(event.name)
    if len(found) != len(cases) + 1:
        raise SystemExit(f"the profile of {d} shows {len(found) - 1} ends of {len(cases)} cases")
    return [(sorted(names), *outcome) for names, outcome in zip(found, outcomes, strict=False)]


def same(a: Any, b: Any) -> bool:
    """Equal values of two trees of tensors."""
    if isinstance(a, torch.Tensor):
        return a.shape == b.shape and torch.equal(a.cpu(), b.cpu())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def main() -> int:
    """Runs every case on both devices; the exit code says whether the kernels were the same in all."""
    options = common.arguments(__doc__ or "")  # --quick: one attention case in 14
    rows, different, refused = [], 0, 0
    cases = list(layer_cases()) + list(attention_cases())[:: 14 if options.quick else 1]
    torch.backends.cudnn.deterministic = True
    sides = {}
    for d in (KIND, "flagos"):
        with on_side("reference" if d == KIND else "device", torch.device(KIND)):
            for _, function in cases:  # loads libraries, picks algorithms
                with contextlib.suppress(Exception):
                    function(d)
            sides[d] = [run for n in range(0, len(cases), CHUNK) for run in kernels(cases[n : n + CHUNK], d)]
    for (name, _), native, flagos in zip(cases, sides[KIND], sides["flagos"], strict=True):
        (want, want_result, want_error), (got, got_result, got_error) = native, flagos
        if want_error and not got_error:  # torch asks for the device's name; nothing to compare
            refused += 1
            rows.append({"case": name, "native_raised": want_error, "same_bits": None})
            continue
        values = not want_error and not got_error and same(want_result, got_result)
        agree = want == got and want_error == got_error
        different += not agree
        row: dict[str, Any] = {"case": name, "same_kernels": agree, "same_bits": values or None}
        if want_error or got_error:
            row["errors"] = [want_error, got_error]
        if not agree:
            row["only_native"] = sorted(set(want) - set(got))
            row["only_flagos"] = sorted(set(got) - set(want))
            row["counts"] = [len(want), len(got)]
            print(f"DIFFERENT {name}: {row}"[:600], flush=True)
        else:
            row["kernels"] = sorted({kernel[:120] for kernel in want})
        rows.append(row)
    bits = sum(bool(r["same_bits"]) for r in rows)
    equal = len(rows) - different - refused
    print(
        f"kernels: {len(rows)} cases, {equal} with the same kernels, {bits} with equal bits, {refused} native refuses"
    )
    summary = {"cases": len(rows), "same_kernels": equal, "different": different, "native_refuses": refused}
    summary["equal_bits"] = bits
    common.write(options.json, "kernels", {**summary, "rows": rows})
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
