# SPDX-License-Identifier: Apache-2.0
"""Trains a convolutional network and a small transformer on a flagos device and, from the same seed, on the CPU.

Prints which operators ran on which route, the memory they took and how far the two loss curves lie apart, and draws
the curves into ``examples/out/loss_curves.png``. With ``--check`` it asserts instead: see ``CHECK_STEPS``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import digits_convnet
import report
import tiny_gpt
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from training import TrainingRun

CHECK_STEPS = 200
"""``--check`` compares this many steps without dropout on one thread."""
GPT_TOLERANCE = 1e-6
"""Largest relative difference of two transformer losses that ``--check`` accepts; the conv net must be bit-equal."""
WANTED_ACCURACY = 0.97
QUICK = {"conv net": 60, "transformer": 40}
FULL = {"conv net": 300, "transformer": 800}
CURVES = Path(__file__).parent / "out" / "loss_curves.png"


@dataclass
class Pair:
    """The same model trained on the device under test and on the CPU."""

    name: str
    device: TrainingRun
    cpu: TrainingRun

    @property
    def largest_relative_difference(self) -> float:
        """Largest |device - cpu| / |cpu| over all steps."""
        pairs = zip(self.device.losses, self.cpu.losses, strict=True)
        return max((abs(d - c) / max(abs(c), 1e-12) for d, c in pairs), default=0.0)

    @property
    def bit_equal(self) -> bool:
        """Whether every loss has the same bits on both devices."""
        return self.device.losses == self.cpu.losses


@dataclass
class Usage:
    """What the device under test reported after the runs.

    Attributes:
        rows: what ``torch_fl.counters()`` gives: op, route, calls, host_ns, copied_bytes, copied_results.
        peak_bytes: largest number of bytes allocated at once.
    """

    rows: list[dict[str, Any]]
    peak_bytes: int

    @property
    def fallbacks(self) -> int:
        """Calls that ran on the CPU by copying their arguments."""
        return sum(row["calls"] for row in self.rows if row["route"] == "cpu")

    @property
    def copied_bytes(self) -> int:
        """Bytes that routing moved between device and host: fallbacks, and results that had to be copied."""
        return sum(row["copied_bytes"] for row in self.rows)


def run_pairs(options: argparse.Namespace, steps: dict[str, int], console: Console) -> tuple[list[Pair], Usage]:
    """Trains both models on both devices and collects what the device counted."""
    on_flagos = not options.device.startswith("cpu")
    if on_flagos:
        import torch_fl

        torch_fl.reset_counters()
        torch.flagos.reset_peak_memory_stats(options.device)
        timing = torch_fl.timing()
    else:
        timing = contextlib.nullcontext()
    models: list[tuple[str, Callable[..., TrainingRun], dict[str, Any]]] = [
        ("conv net", digits_convnet.run, {}),
        ("transformer", tiny_gpt.run, {"write_characters": 0 if options.check else 240}),
    ]
    pairs = []
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    bars = Progress(*columns, TextColumn("loss {task.fields[loss]:.4f}"), TimeElapsedColumn(), console=console)
    with bars, timing:
        for name, run, extra in models:
            runs = []
            for device in (options.device, "cpu"):
                bar = bars.add_task(f"{name:<11} on {device:<8}", total=steps[name], loss=float("nan"))

                def on_step(step: int, loss: float, bar: Any = bar) -> None:
                    bars.update(bar, completed=step + 1, loss=loss)

                runs.append(run(device, steps[name], options.seed, options.dropout, on_step, **extra))
            pairs.append(Pair(name, runs[0], runs[1]))
    if not on_flagos:
        return pairs, Usage([], 0)
    return pairs, Usage([dict(row) for row in torch_fl.counters()], torch.flagos.max_memory_allocated(options.device))


def failures(pairs: list[Pair], usage: Usage) -> list[str]:
    """What ``--check`` found wrong, one sentence each; empty when all is well."""
    conv_net, transformer = pairs
    found = []
    if not conv_net.bit_equal:
        step = next(
            i for i, (d, c) in enumerate(zip(conv_net.device.losses, conv_net.cpu.losses, strict=True)) if d != c
        )
        found.append(
            f"conv net: losses differ from step {step} on, by {conv_net.largest_relative_difference:.2e} relative; "
            "they must be bit-equal"
        )
    # Written so that a NaN loss fails as well.
    if not transformer.largest_relative_difference <= GPT_TOLERANCE:
        found.append(
            f"transformer: losses differ by {transformer.largest_relative_difference:.2e} relative, "
            f"more than {GPT_TOLERANCE:.0e}"
        )
    for pair in pairs:
        for run in (pair.device, pair.cpu):
            if not run.losses[-1] < run.losses[0]:
                found.append(f"{pair.name} on {run.device}: the loss did not fall")
    if usage.fallbacks:
        names = sorted({row["op"] for row in usage.rows if row["route"] == "cpu"})
        found.append(f"{usage.fallbacks} calls fell back to the CPU by copy: {', '.join(names)}")
    if usage.copied_bytes:
        found.append(f"routing copied {usage.copied_bytes} bytes")
    return found


def as_json(pairs: list[Pair], usage: Usage, seconds: float, found: list[str] | None) -> str:
    """The whole result as one JSON object."""
    summary: dict[str, Any] = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "seconds": round(seconds, 1),
        "peak_bytes": usage.peak_bytes,
        "fallback_calls": usage.fallbacks,
        "copied_bytes": usage.copied_bytes,
        "models": {
            pair.name: {
                "steps": len(pair.device.losses),
                "bit_equal": pair.bit_equal,
                "largest_relative_difference": pair.largest_relative_difference,
                "runs": [vars(run) for run in (pair.device, pair.cpu)],
            }
            for pair in pairs
        },
        "operators": usage.rows,
    }
    if found is not None:
        summary["failures"] = found
    return json.dumps(summary, indent=2)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="flagos:0", help="device under test (default: %(default)s)")
    parser.add_argument("--steps", type=int, help="training steps of each model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dropout", type=float, default=0.0, help="with dropout the two devices draw differently")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    parser.add_argument(
        "--check", action="store_true", help=f"compare {CHECK_STEPS} steps; exit code 1 on a difference"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout and no tables")
    options = parser.parse_args()
    if options.check and (options.steps or options.dropout or options.quick):
        parser.error("--check fixes the steps and the dropout")
    return options


def main() -> int:
    """Runs the demo; returns the exit code."""
    options = parse_options()
    started = time.perf_counter()
    console = Console(stderr=options.json)
    steps = QUICK if options.quick else FULL
    if options.steps:
        steps = dict.fromkeys(FULL, options.steps)
    if options.check:
        torch.set_num_threads(1)
        steps = dict.fromkeys(FULL, CHECK_STEPS)
    pairs, usage = run_pairs(options, steps, console)
    found = failures(pairs, usage) if options.check else None
    report.save_curves(pairs, CURVES)
    seconds = time.perf_counter() - started
    if options.json:
        print(as_json(pairs, usage, seconds, found))
    else:
        report.print_report(console, pairs, usage, seconds, CURVES)
    if found is None:
        accuracy = pairs[0].device.accuracy or 0.0
        if steps == FULL and accuracy < WANTED_ACCURACY:
            console.print(f"[red]the conv net reached {accuracy:.2%}, less than {WANTED_ACCURACY:.0%}[/red]")
            return 1
        return 0
    for sentence in found:
        console.print(f"[red]check failed:[/red] {sentence}")
    if not found:
        apart = pairs[1].largest_relative_difference
        console.print(f"[green]check passed[/green]: {CHECK_STEPS} steps, conv net bit-equal, transformer {apart:.0e}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
