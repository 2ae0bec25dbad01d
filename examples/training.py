# SPDX-License-Identifier: Apache-2.0
"""What the two example models share: the record of one training run and the batches both devices see."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

OnStep = Callable[[int, float], None]
"""Called after every training step with the step's index (from 0) and its loss."""


@dataclass
class TrainingRun:
    """One training run on one device.

    Attributes:
        device: where it ran, e.g. ``"flagos:0"``.
        losses: training loss of every step, in order.
        seconds: wall time of the training steps.
        accuracy: test accuracy from 0 to 1, or None when the model has none.
        sample: text the trained model wrote, or None when it writes none.
    """

    device: str
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    accuracy: float | None = None
    sample: str | None = None


def train(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of_step: Callable[[int], torch.Tensor],
    steps: int,
    run: TrainingRun,
    on_step: OnStep | None = None,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
) -> None:
    """Trains ``model`` for ``steps`` steps and writes the losses and the wall time into ``run``.

    Args:
        loss_of_step: gives the loss (0-dim tensor with a graph) of step ``i``.
    """
    model.train()
    started = time.perf_counter()
    for step in range(steps):
        loss = loss_of_step(step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        run.losses.append(loss.item())
        if on_step is not None:
            on_step(step, run.losses[-1])
    run.seconds = time.perf_counter() - started


def shuffled_batches(count: int, batch_size: int, seed: int) -> Iterator[torch.Tensor]:
    """Endless batches of indices into ``count`` examples, each a CPU int64 tensor of shape ``(batch_size,)``.

    Every epoch is a fresh permutation. The generator is a CPU one of its own, so that the order depends on the seed
    only and every device sees the same batches.
    """
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(count, generator=generator)
        yield from order[: count - count % batch_size].split(batch_size)
