# SPDX-License-Identifier: Apache-2.0
"""Many threads on one tensor, and memory that stays where it is over thousands of training steps."""

from __future__ import annotations

import gc
import queue
import threading
import time

import pytest
import torch
from torch.nn import functional as F

from helpers import D

# Minutes of work on purpose.
pytestmark = pytest.mark.slow

THREADS = 4
CALLS_PER_THREAD = 20_000
STEPS = 2_000
RSS_TOLERANCE = 8 << 20
"""Bytes the process may grow between step 100 and the end: heap arenas move by a few MiB, while losing one tensor
(about 0.5 KiB of host memory) of the hundred that a step makes would be 0.9 MiB for each of them, one of its 16 KiB
activations a step 30 MiB."""


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def test_four_threads_share_one_weight() -> None:
    weight = torch.ones(8, 8, device=D, requires_grad=True)
    wrong: list[str] = []
    calls = [0] * THREADS

    def work(number: int) -> None:
        try:
            x = torch.full((2, 8), float(number + 1), device=D)
            expected = torch.full((2, 8), 8.0 * (number + 1), device=D)
            expected_grad = torch.full((8, 8), 2.0 * (number + 1), device=D)
            while calls[number] < CALLS_PER_THREAD:
                y = F.linear(x, weight)
                calls[number] += 2  # linear, equal
                if y.device != x.device or not torch.equal(y, expected):
                    wrong.append(f"thread {number}: {y}")
                if calls[number] % 16 == 0:
                    (grad,) = torch.autograd.grad(y.sum(), weight)
                    calls[number] += 2
                    if grad.device != x.device or not torch.equal(grad, expected_grad):
                        wrong.append(f"thread {number}: {grad}")
        except Exception as error:  # a thread has nobody else to tell
            wrong.append(f"thread {number}: {error!r}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(calls) >= THREADS * CALLS_PER_THREAD
    assert not wrong, f"{len(wrong)} wrong results, the first: {wrong[0]}"
    assert weight.device.type == D and torch.equal(weight.detach().cpu(), torch.ones(8, 8))


def test_memory_stays_flat_over_training_steps_with_a_producer_and_a_consumer() -> None:
    items: queue.Queue[torch.Tensor | None] = queue.Queue(maxsize=4)
    stop = threading.Event()
    failures: list[str] = []
    consumed = [0]

    def produce() -> None:
        number = 0
        while not stop.is_set():
            items.put(torch.full((64, 64), float(number % 100), device=D))
            number += 1
            time.sleep(0.001)  # leaves the interpreter lock to the training loop
        items.put(None)

    def consume() -> None:
        expected = 0
        while (item := items.get()) is not None:
            if item[3, 3].item() != float(expected % 100):
                failures.append(f"item {expected} is {item[3, 3].item()}")
            expected += 1
            del item  # this thread frees what the other one allocated
        consumed[0] = expected

    # More live blocks than the queue and both threads ever hold at once, so that the high-water mark is reached before
    # it is measured.
    warm = [torch.empty(64, 64, device=D) for _ in range(16)]
    del warm

    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)).to(D)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, target = torch.randn(64, 32, device=D), torch.randint(4, (64,), device=D)
    threads = [threading.Thread(target=produce), threading.Thread(target=consume)]
    for thread in threads:
        thread.start()
    reserved = resident = 0
    try:
        for step in range(STEPS):
            loss = F.cross_entropy(model(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == 100:
                gc.collect()
                reserved, resident = torch.flagos.memory_reserved(), resident_bytes()
        gc.collect()
        reserved_at_end, resident_at_end = torch.flagos.memory_reserved(), resident_bytes()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]
    assert consumed[0] > 0, "the other threads never ran"
    assert reserved > 0
    assert reserved_at_end == reserved
    assert abs(resident_at_end - resident) < RSS_TOLERANCE, f"{(resident_at_end - resident) / 2**20:.1f} MiB"


def test_freed_memory_is_counted_down_whichever_thread_frees_it() -> None:
    gc.collect()
    before = torch.flagos.memory_allocated()
    tensors = [torch.empty(1 << 20, dtype=torch.uint8, device=D) for _ in range(8)]
    assert torch.flagos.memory_allocated() >= before + (8 << 20)
    thread = threading.Thread(target=tensors.clear)
    thread.start()
    thread.join()
    assert torch.flagos.memory_allocated() == before


def test_the_current_device_belongs_to_the_thread(two_devices: None) -> None:
    torch.flagos.set_device(1)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.flagos.current_device()))
    thread.start()
    thread.join()
    assert seen == [0]
    assert torch.flagos.current_device() == 1
