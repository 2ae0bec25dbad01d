# SPDX-License-Identifier: Apache-2.0
"""Host time that flagos adds to 20 small operators, native and flagos in alternation, Python loop and C++ loop.

The C++ loop needs libsmall_ops.so beside this script (build.sh) and also times the way of flipping a tensor's
device in place round each call, as a yardstick.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import torch
import torch.nn.functional as F

LIBRARY = Path(__file__).resolve().parent / "libsmall_ops.so"


def operators(d: str) -> dict[str, Callable[[], Any]]:
    """Calls on small tensors, below autograd."""
    torch.manual_seed(0)
    x, y, z = (torch.randn(8, 8, device=d) for _ in range(3))
    b, v = torch.randn(8, device=d), torch.rand(8, 8, device=d)
    i = torch.arange(8, device=d)
    image, kernel = torch.randn(1, 4, 8, 8, device=d), torch.randn(4, 4, 3, 3, device=d)
    many = [torch.randn(8, device=d) for _ in range(100)]
    return {
        "add": lambda: x + y,
        "mul_scalar": lambda: x * 2.0,
        "relu": lambda: torch.relu(x),
        "gelu": lambda: F.gelu(x),
        "exp": lambda: torch.exp(x),
        "add_": lambda: x.add_(z, alpha=0.0),
        "sum": lambda: x.sum(),
        "mean_dim": lambda: x.mean(-1),
        "softmax": lambda: torch.softmax(x, -1),
        "mm": lambda: x @ y,
        "addmm": lambda: torch.addmm(b, x, y),
        "cat": lambda: torch.cat((x, y, z, v)),
        "where": lambda: torch.where(x > 0, x, y),
        "layer_norm": lambda: F.layer_norm(x, (8,), b, b),
        "index_select": lambda: torch.index_select(x, 0, i),
        "embedding": lambda: F.embedding(i, x),
        "view": lambda: x.view(64),
        "empty": lambda: torch.empty(8, 8, device=d),
        "copy_": lambda: x.copy_(y),
        "conv2d": lambda: F.conv2d(image, kernel),
        "chain_of_3": lambda: torch.relu(x + y).sum(),
        "foreach_add_100": lambda: torch._foreach_add(many, 1.0),
    }


def python_loop(rounds: int, count: int) -> dict[str, Any]:
    """Microseconds of one call, both devices in alternation."""
    kind = common.native_kind()
    sides = {kind: operators(kind), "flagos": operators("flagos")}
    rows = {}
    for name in sides[kind]:
        n = count // 20 if name.startswith("foreach") else count
        times: dict[str, list[float]] = {kind: [], "flagos": []}
        with torch.no_grad():
            for side in times:
                common.microseconds(sides[side][name], n)  # warm up
            for number in range(rounds):
                order = list(times) if number % 2 == 0 else list(times)[::-1]
                for side in order:
                    times[side].append(common.microseconds(sides[side][name], n))
        rows[name] = {
            "native_us": common.spread(times[kind]),
            "flagos_us": common.spread(times["flagos"]),
            "added_us": round(common.spread(times["flagos"])["median"] - common.spread(times[kind])["median"], 4),
        }
    return rows


def cpp_loop(rounds: int, count: int) -> dict[str, Any]:
    """Nanoseconds of one call in a C++ loop below autograd: native, flagos, and a device flip in place."""
    if not LIBRARY.is_file():
        return {}
    torch.ops.load_library(str(LIBRARY))
    kind = common.native_kind()
    names = torch.ops.fl_bench.names()
    rows = {}
    for name in names:
        times: dict[str, list[float]] = {"native": [], "flagos": [], "flip": []}
        for number in range(rounds + 1):
            for side in times if number % 2 else list(times)[::-1]:
                device = kind if side == "native" else "flagos"
                spent = torch.ops.fl_bench.time(name, device, side == "flip", count)
                if number > 0:
                    times[side].append(spent)
        native = common.spread(times["native"])["median"]
        rows[name] = {f"{side}_ns": common.spread(values) for side, values in times.items()}
        rows[name]["added_ns"] = round(common.spread(times["flagos"])["median"] - native, 1)
        rows[name]["flip_added_ns"] = round(common.spread(times["flip"])["median"] - native, 1)
    return rows


def main() -> None:
    """Measures, prints a table, writes the record."""
    options = common.arguments(__doc__ or "")
    rounds, count = (7, 400) if options.quick else (15, 1500)
    loops = {"cpp": cpp_loop(rounds, count * 2), "python": python_loop(rounds, count)}
    for name, row in loops["python"].items():
        native, flagos = row["native_us"]["median"], row["flagos_us"]["median"]
        ratio = flagos / native
        print(f"{name:<18} native {native:8.3f} us  flagos {flagos:8.3f} us  +{row['added_us']:.3f}  {ratio:.3f}")
    ratios = sorted(r["flagos_us"]["median"] / r["native_us"]["median"] for r in loops["python"].values())
    added = sorted(r["added_us"] for r in loops["python"].values())
    middle = len(ratios) // 2
    summary = {"python_median_ratio": round(ratios[middle], 4), "python_median_added_us": added[middle]}
    for name, row in loops["cpp"].items():
        print(
            f"C++ {name:<14} native {row['native_ns']['median']:9.1f} ns  added {row['added_ns']:8.1f}"
            f"  flip in place {row['flip_added_ns']:8.1f}"
        )
    if loops["cpp"]:
        for key in ("added_ns", "flip_added_ns"):
            values = sorted(r[key] for r in loops["cpp"].values())
            summary[f"cpp_median_{key}"] = values[len(values) // 2]
    print("overhead:", summary)
    common.write(options.json, "overhead", {"summary": summary, "rounds": rounds, "count": count, **loops})


if __name__ == "__main__":
    main()
