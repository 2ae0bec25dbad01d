# SPDX-License-Identifier: Apache-2.0
"""What the scripts of this folder share: machine facts, statistics, run records."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import torch_fl
from torch_fl import _C

DEVICE = "flagos"


def native_kind() -> str:
    """The device type that flagos is delegated to.

    Raises:
        SystemExit: the devices are not delegated, so there is nothing to compare with.
    """
    kind = _C._delegate()
    if not kind:
        raise SystemExit("flagos is not delegated to another backend here: no accelerator, or FLAGOS_DRIVER is set")
    return kind


def arguments(description: str) -> argparse.Namespace:
    """The options of every script: where the record goes, and a short run."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a run record")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    return parser.parse_args()


def facts() -> dict[str, Any]:
    """Machine and versions, without names or paths of the machine."""
    kind = native_kind()
    backend = getattr(torch, kind)
    properties = backend.get_device_properties(0)
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "accelerator": properties.name,
            "accelerators": backend.device_count(),
            "cores": len(os.sched_getaffinity(0)),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "torch_fl": torch_fl.__version__,
            "toolkit": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        },
    }


def write(path: Path | None, kind: str, results: dict[str, Any]) -> None:
    """Writes the run record of one script; nothing without a path."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"kind": kind, **facts(), **results}, indent=1) + "\n", encoding="utf-8")


def spread(values: list[float]) -> dict[str, float]:
    """Median, lowest, and the distance between the quartiles."""
    quartiles = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return {
        "median": round(statistics.median(values), 4),
        "min": round(min(values), 4),
        "iqr": round(quartiles[2] - quartiles[0], 4),
    }


def microseconds(function: Any, count: int) -> float:
    """Host time of one call in a loop of `count`, the device left to run on; it is idle before and after."""
    torch.accelerator.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        function()
    spent = time.perf_counter() - start
    torch.accelerator.synchronize()
    return spent / count * 1e6
