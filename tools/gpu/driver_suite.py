#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the driver suite on a machine with an accelerator, from shared objects that were built elsewhere.

Needs no network and no compiler. `--build` is a folder laid out as `torch_fl` in the build tree, with the suite's
program, the runtime and the drivers; tools/gpu/pack.sh makes one. Says what the driver finds in the vendor's
libraries, runs `conformance.driver_suite`, and adds to its run record what the accelerator is.

    python3 tools/gpu/driver_suite.py --build build/gpu/torch_fl --driver cuda --json evidence/driver/cuda-h200.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Where Python packages put a runtime library that the loader's own search does not find.
LIBRARY_PLACES = {
    "cuda": ("nvidia/cu13/lib/libcudart.so.13", "nvidia/cuda_runtime/lib/libcudart.so.12"),
}


def find_library(driver: str) -> Path | None:
    """The vendor's runtime library among this Python's packages, or None: then the driver searches by itself."""
    for folder in sys.path:
        for place in LIBRARY_PLACES.get(driver, ()):
            if folder and (Path(folder) / place).exists():
                return Path(folder) / place
    return None


def query_devices() -> list[dict[str, str]]:
    """What the vendor's monitor says of each device; empty without one."""
    fields = "name,driver_version,memory.total"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []
    return [dict(zip(fields.split(","), (w.strip() for w in line.split(",")), strict=True)) for line in lines]


def make_environment(driver: str, device_count: int) -> dict[str, str]:
    """The variables of the run; what the caller set stays."""
    environment = dict(os.environ)
    library = find_library(driver)
    if library is not None:
        environment.setdefault(f"FLAGOS_{driver.upper()}_LIBRARY", str(library))
    # Expectations that hold for one device only ask for it.
    environment.setdefault("FLAGOS_SUITE_DEVICES", str(device_count))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH", "")]))
    return environment


def audit(program: Path, driver: str, environment: dict[str, str]) -> list[str]:
    """Which vendor libraries and functions the driver found, one line each."""
    described = subprocess.run(
        [program, "--driver", driver, "--describe"],
        env=environment | {f"FLAGOS_{driver.upper()}_AUDIT": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    print(described.stderr + described.stdout, flush=True)
    # File names only: a record says nothing about one machine's folders.
    return [" ".join(word.rsplit("/", 1)[-1] for word in line.split(" ")) for line in described.stderr.splitlines()]


def main() -> int:
    """Runs the suite and completes its record; the suite's exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--driver", default="cuda")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--timeout", type=int, default=20, help="seconds for one test")
    options, rest = parser.parse_known_args()

    program = (options.build / "bin" / "torch_fl_driver_suite").resolve()
    program.chmod(0o755)
    devices = query_devices()
    environment = make_environment(options.driver, len(devices))
    found = audit(program, options.driver, environment)
    options.json.unlink(missing_ok=True)
    command = [sys.executable, "-m", "conformance.driver_suite", "--driver", options.driver, "--program", str(program)]
    command += ["--timeout", str(options.timeout), "--json", str(options.json.resolve()), "--verbose", *rest]
    status = subprocess.run(command, env=environment, cwd=ROOT).returncode
    if options.json.exists():
        record: dict[str, Any] = json.loads(options.json.read_text(encoding="utf-8"))
        record["devices"] = devices
        record["audit"] = found
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
