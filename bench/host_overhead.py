# SPDX-License-Identifier: Apache-2.0
"""Host cost of flagos: time added to each small operator over the plain CPU, and training steps as ratios.

Both devices run in one process, in alternating slices, so that the machine's mood hits both alike. The minimum of many
slices is the cost without disturbance, the median the usual one. Not a test: it prints figures and judges nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import host_models
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import torch_fl
from torch_fl import _C

DEVICES = ("cpu", "flagos")
DEFAULT_JSON = Path(__file__).resolve().parents[1] / "evidence" / "bench" / "host.json"

# One Python statement each. Tensors are small (4x8 and thereabouts), so that the kernels cost next to nothing.
COMPUTE = {
    "add": "torch.add(a, b)",
    "mul": "torch.mul(a, b)",
    "relu": "torch.relu(a)",
    "exp": "torch.exp(a)",
    "sum": "torch.sum(a)",
    "mean": "torch.mean(a, 1)",
    "mm": "torch.mm(a, m)",
    "addmm": "torch.addmm(v, a, m)",
    "bmm": "torch.bmm(t, t)",
    "softmax": "torch.softmax(a, 1)",
    "layer_norm": "F.layer_norm(a, shape, v, v)",
    "gelu": "F.gelu(a)",
    "cat": "torch.cat(four)",
    "index_select": "torch.index_select(a, 0, i)",
    "where": "torch.where(c, a, b)",
    "add_": "a.add_(z)",
    "mul_": "a.mul_(one)",
    "copy_": "o.copy_(a)",
    "fill_": "o.fill_(1.0)",
    "empty_like": "torch.empty_like(a)",
}
VIEWS = {
    "view": "a.view(8, 4)",
    "reshape": "a.reshape(2, 16)",
    "transpose": "a.transpose(0, 1)",
    "slice": "a[1:3]",
    "select": "a[0]",
    "unsqueeze": "a.unsqueeze(0)",
    "expand": "v.expand(4, 8)",
    "permute": "t.permute(2, 0, 1)",
}


def operands(device: str) -> dict[str, Any]:
    """The names that the statements use, as tensors of `device`."""
    generator = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator).to(device)

    a = rand(4, 8)
    return {
        "torch": torch, "F": torch.nn.functional, "shape": (8,),
        "a": a, "b": rand(4, 8), "o": rand(4, 8), "m": rand(8, 8), "v": rand(8), "t": rand(2, 4, 4),
        "z": torch.zeros(4, 8).to(device), "one": torch.ones(4, 8).to(device), "four": [rand(4, 8) for _ in range(4)],
        "i": torch.tensor([0, 2]).to(device), "c": torch.tensor([True, False] * 4).to(device),
    }  # fmt: skip


def spread(samples: list[float]) -> dict[str, float]:
    """Minimum, median and quartiles of a list of times."""
    low, middle, high = statistics.quantiles(samples, n=4)
    return {"min": min(samples), "median": middle, "q1": low, "q3": high}


def alternate(run: dict[str, Callable[[], float]], slices: int) -> dict[str, dict[str, float]]:
    """Runs both devices' slices in turn, the first one changing each round. `run` returns a slice's time."""
    samples: dict[str, list[float]] = {device: [] for device in DEVICES}
    for turn in range(slices):
        for device in DEVICES if turn % 2 == 0 else reversed(DEVICES):
            samples[device].append(run[device]())
    return {device: spread(times) for device, times in samples.items()}


def measure_op(statement: str, slices: int, slice_ms: float) -> dict[str, Any]:
    """Nanoseconds a call on both devices, and what flagos adds."""
    timers = {device: timeit.Timer(statement, globals=operands(device)) for device in DEVICES}
    for timer in timers.values():
        timer.timeit(200)
    calls = max(20, int(slice_ms / 1e3 / (timers["cpu"].timeit(200) / 200)))

    def one_slice(device: str) -> float:
        nanoseconds = timers[device].timeit(calls) / calls * 1e9
        if device == "flagos":
            torch_fl.flagos.synchronize()  # outside the time: the host's cost is asked for
        return nanoseconds

    result: dict[str, Any] = alternate({device: partial(one_slice, device) for device in DEVICES}, slices)
    result["calls_per_slice"] = calls
    for key in ("min", "median"):
        result[f"added_{key}"] = result["flagos"][key] - result["cpu"][key]
    return result


def measure_step(name: str, slices: int, foreach: bool) -> dict[str, Any]:
    """Milliseconds a training step on both devices, and the ratio flagos / CPU."""
    build, steps = host_models.MODELS[name]
    step = {device: build(device, foreach) for device in DEVICES}
    for device in DEVICES:
        step[device]()
    losses = {device: step[device]() for device in DEVICES}
    if abs(losses["cpu"] - losses["flagos"]) > 1e-3 * max(1.0, abs(losses["cpu"])):
        raise RuntimeError(f"{name}: loss {losses['cpu']} on the CPU, {losses['flagos']} on flagos; nothing measured")

    def one_slice(device: str) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            step[device]()  # reads the loss, hence waits for the device
        return (time.perf_counter() - begin) / steps * 1e3

    result: dict[str, Any] = alternate({device: partial(one_slice, device) for device in DEVICES}, slices)
    result["steps_per_slice"] = steps
    for key in ("min", "median"):
        result[f"ratio_{key}"] = result["flagos"][key] / result["cpu"][key]
    return result


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    cpu = platform.processor()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    driver = _C._driver_info()
    return {
        "cpu": cpu,
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_fl": torch_fl.__version__,
        "driver": {key: driver[key] for key in ("name", "platform", "implementation", "capabilities")},
        "variables": {key: value for key, value in sorted(os.environ.items()) if key.startswith("FLAGOS_")},
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
    }


def parse(argv: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="torch-fl bench host", description=__doc__)
    parser.add_argument("--slices", type=int, default=100, help="slices a device for each operator (default 100)")
    parser.add_argument("--slice-ms", type=float, default=1.0, help="length of an operator's slice (default 1 ms)")
    parser.add_argument("--step-slices", type=int, default=15, help="slices a device for each model (default 15)")
    parser.add_argument("--foreach", action="store_true", help="foreach optimizers on both devices, else loops on both")
    parser.add_argument("--only", choices=("ops", "steps"), help="leave the other half out")
    parser.add_argument(
        "--json", nargs="?", const=DEFAULT_JSON, type=Path, metavar="FILE", help="write JSON (evidence/bench/host.json)"
    )
    options = parser.parse_args(argv)
    if options.slices < 4 or options.step_slices < 4:
        parser.error("at least 4 slices are needed for a median and its quartiles")
    return options


def show(console: Console, record: dict[str, Any]) -> None:
    """The tables on the screen."""
    if record["ops"]:
        table = Table(title="Time a call, ns: minimum of all slices; spread: quartiles of flagos / median")
        table.add_column("operator", no_wrap=True)
        for title in ("CPU", "flagos", "added", "added, median", "spread"):
            table.add_column(title, justify="right", no_wrap=True)
        for name, row in record["ops"].items():
            times = [f"{row[device]['min']:,.0f}" for device in DEVICES]
            iqr = (row["flagos"]["q3"] - row["flagos"]["q1"]) / row["flagos"]["median"]
            table.add_row(name, *times, f"{row['added_min']:+,.0f}", f"{row['added_median']:+,.0f}", f"{iqr:.0%}")
        console.print(table)
        for kind in ("compute", "view"):
            rows = {name: row["added_min"] for name, row in record["ops"].items() if row["kind"] == kind}
            worst = max(rows, key=lambda name: rows[name])
            console.print(
                f"{kind}: worst added {rows[worst] / 1e3:+.3f} us ({worst}), "
                f"median added {statistics.median(rows.values()) / 1e3:+.3f} us"
            )
    if record["steps"]:
        table = Table(title="Training step, ms")
        table.add_column("model")
        for title in ("CPU", "flagos", "ratio, minimum", "ratio, median"):
            table.add_column(title, justify="right")
        for name, row in record["steps"].items():
            times = [f"{row[d]['min']:,.2f}" for d in DEVICES]
            table.add_row(name, *times, f"{row['ratio_min']:.3f}", f"{row['ratio_median']:.3f}")
        console.print(table)
    console.print(f"CPU fallbacks while measuring: {record['fallback_calls']}")


def main(argv: list[str]) -> int:
    """Measures, prints, writes the record. 1 without a device."""
    options = parse(argv)
    if not torch_fl.flagos.is_available():
        print(f"no flagos device: {_C._unavailable_reason()}", file=sys.stderr)
        return 1
    torch.set_num_threads(1)
    console = Console()
    torch_fl.reset_counters()
    chosen = {key: value for key, value in vars(options).items() if key not in ("json", "only")}
    record: dict[str, Any] = {"machine": machine(), "options": chosen, "units": {"ops": "ns", "steps": "ms"}}
    record["ops"], record["steps"] = {}, {}
    gc.disable()
    if options.only != "steps":
        kinds = [(name, text, "compute") for name, text in COMPUTE.items()]
        kinds += [(name, text, "view") for name, text in VIEWS.items()]
        for name, statement, kind in track(kinds, description="operators", console=console):
            row = measure_op(statement, options.slices, options.slice_ms)
            record["ops"][name] = {"kind": kind, "statement": statement, **row}
            gc.collect()
    if options.only != "ops":
        for name in track(host_models.MODELS, description="models", console=console):
            record["steps"][name] = measure_step(name, options.step_slices, options.foreach)
            gc.collect()
    gc.enable()
    record["fallback_calls"] = sum(row["calls"] for row in torch_fl.counters() if row["route"] == "cpu")
    show(console, record)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        console.print(f"written: {options.json}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
