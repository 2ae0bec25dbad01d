# SPDX-License-Identifier: Apache-2.0
"""Threads that share a weight, streams that hand memory over under allocation pressure, and running out of memory."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import common
import torch

NATIVE = getattr(torch, common.native_kind())


def shared_weight(threads: int = 4, calls: int = 20_000) -> dict[str, Any]:
    """Every thread calls operators on one weight, autograd on; a wrong result or an error counts."""
    weight = torch.randn(8, 8, device="flagos", requires_grad=True)
    x = torch.randn(8, 8, device="flagos")
    want_add, want_mm = (weight + x).detach(), (weight @ x).detach()
    wrong, errors = [0] * threads, [""] * threads
    gate = threading.Barrier(threads)

    def work(number: int) -> None:
        bad = torch.zeros((), device="flagos", dtype=torch.int64)
        gate.wait()
        try:
            for call in range(calls):
                got, want = (weight + x, want_add) if call % 2 else (weight @ x, want_mm)
                if got.device.type != "flagos" or not got.requires_grad:
                    wrong[number] += 1
                if call % 10 == 0:
                    bad += (got.detach() != want).any()
            wrong[number] += int(bad.item())
        except Exception as error:  # noqa: BLE001 - counted and reported
            errors[number] = f"{type(error).__name__}: {error}"[:300]

    start = time.perf_counter()
    pool = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    return {
        "calls": threads * calls,
        "wrong": sum(wrong),
        "errors": [e for e in errors if e],
        "seconds": round(time.perf_counter() - start, 2),
    }


def backward_in_threads(threads: int = 4, steps: int = 300) -> dict[str, Any]:
    """Forward and backward through one weight from several threads; the gradients are compared with the first."""
    weight = torch.randn(64, 64, device="flagos", requires_grad=True)
    x = torch.randn(32, 64, device="flagos")

    def gradient() -> torch.Tensor:
        return torch.autograd.grad(torch.relu(x @ weight).square().sum(), weight)[0]

    want = gradient()
    wrong = [0] * threads
    errors = [""] * threads

    def work(number: int) -> None:
        try:
            for _ in range(steps):
                wrong[number] += not torch.equal(gradient(), want)
        except Exception as error:  # noqa: BLE001 - counted and reported
            errors[number] = f"{type(error).__name__}: {error}"[:300]

    pool = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    return {"steps": threads * steps, "wrong": sum(wrong), "errors": [e for e in errors if e]}


def record_stream_storm(rounds: int = 400) -> dict[str, Any]:
    """A buffer is written on one stream, read on a slow other one, freed at once, and its size asked for again."""
    side = torch.flagos.Stream()
    size = 1 << 20
    sums = torch.zeros(rounds, device="flagos", dtype=torch.float64)
    slow = torch.randn(2048, 2048, device="flagos")
    reused = 0
    last = 0
    for number in range(rounds):
        x = torch.full((size,), float(number), device="flagos")
        side.wait_stream(torch.flagos.current_stream())
        with torch.flagos.stream(side):
            slow @ slow  # keeps the side stream behind
            sums[number] = x.double().mean()
        x.record_stream(side)
        last = x.data_ptr()
        del x
        storm = [torch.full((size,), -1.0, device="flagos") for _ in range(2)]
        reused += any(t.data_ptr() == last for t in storm)
        del storm
    torch.flagos.synchronize()
    wrong = int((sums.cpu() != torch.arange(rounds, dtype=torch.float64)).sum())
    return {"rounds": rounds, "wrong": wrong, "blocks_reused_at_once": reused}


def out_of_memory() -> dict[str, Any]:
    """Fills the device, catches the error, frees, and goes on."""
    held, caught = [], ""
    try:
        while True:
            held.append(torch.empty(4 << 30, dtype=torch.uint8, device="flagos"))
    except torch.OutOfMemoryError as error:
        caught = type(error).__name__
    blocks = len(held)
    held.clear()
    works = torch.ones(1 << 20, device="flagos").sum().item() == 1 << 20
    torch.flagos.empty_cache()
    return {"caught": caught, "blocks_of_4_gib": blocks, "next_allocation_works": works}


def main() -> int:
    """Runs all; the exit code says whether nothing was wrong."""
    options = common.arguments(__doc__ or "")
    results = {
        "shared_weight": shared_weight(calls=5_000 if options.quick else 20_000),
        "backward_in_threads": backward_in_threads(),
        "record_stream_storm": record_stream_storm(),
        "out_of_memory": out_of_memory(),
    }
    for name, result in results.items():
        print(f"{name}: {result}", flush=True)
    good = (
        not any(results[n]["wrong"] or results[n].get("errors") for n in list(results)[:3])
        and results["out_of_memory"]["caught"] == "OutOfMemoryError"
        and results["out_of_memory"]["next_allocation_works"]
    )
    print("stress:", "pass" if good else "FAIL")
    common.write(options.json, "stress", {"good": good, **results})
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
