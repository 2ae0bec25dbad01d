# SPDX-License-Identifier: Apache-2.0
"""Shows what torch_fl found on this machine: versions, driver, devices, settings, and what it changes in torch."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from typing import Any

import torch_fl
from torch_fl import _boot, _compat
from torch_fl._text import one_line, size_text
from torch_fl.tools import variables

NAME = "info"
HELP = "what torch_fl found on this machine"

# Unavoidable effects of registering any backend under torch's slot for outside devices.
CHANGES = (
    "torch.accelerator: current_accelerator() is flagos, and its streams, memory and device calls go there",
    "torch.device(0) and integer devices in general mean flagos:0",
    "the CPU allocator is wrapped while the driver's memory is visible to the host (host driver), so that results of "
    "CPU kernels lie in device memory",
    "backward passes on tensors of another accelerator fail: torch looks for their streams at flagos only",
    "torch.Tensor, torch.nn.Module, storages and PackedSequence gain flagos() and is_flagos",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Only the choice of the output."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:
    """Prints the facts; 1 if flagos could not be registered."""
    facts = collect()
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        _show(facts)
    return 0 if facts["registered"] else 1


def collect() -> dict[str, Any]:
    """Everything that `torch-fl info` shows. Never raises: what cannot be found out is text that says why."""
    facts: dict[str, Any] = {"torch_fl": torch_fl.__version__, "python": platform.python_version()}
    facts["machine"] = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
    facts["registered"], facts["reason"] = True, ""
    try:
        import torch

        facts["torch"] = torch.__version__
        _boot.activate()
        facts.update(_registered_facts())
    except Exception as error:  # noqa: BLE001 - this command is what explains such an error
        facts["registered"] = False
        facts["reason"] = one_line(error)
    facts["import torch loads flagos"] = _autoload_text()
    drivers = facts.get("available drivers", [])
    facts["variables"] = [
        {"name": name, "value": value, "meaning": meaning} for name, value, meaning in variables.active(drivers)
    ]
    facts["changes in torch"] = list(CHANGES)
    facts["patches"] = [patch._asdict() for patch in _compat.patches()]
    return facts


def _registered_facts() -> dict[str, Any]:
    from torch_fl import _C, flagos

    facts: dict[str, Any] = {"built for torch": _C._torch_version_built()}
    facts["driver folder"] = _C._driver_folder()
    facts["available drivers"] = _C._available_drivers()
    facts["owner"] = _C._delegate() or "torch_fl"  # of the devices
    try:
        facts["driver"] = "none needed" if _C._delegate() else _C._driver_info()
    except RuntimeError as error:
        facts["driver"] = one_line(error)
    facts["unavailable"] = _C._unavailable_reason()
    facts["devices"] = []
    for index in range(flagos.device_count()):
        properties = flagos.get_device_properties(index)
        free, total = flagos.mem_get_info(index)
        facts["devices"].append(
            {
                "index": index,
                "free_memory": free,
                "total_memory": total,
                "name": properties.name,
                "arch": getattr(properties, "arch", ""),  # a backend of torch may not have it
            }
        )
    facts["routed operators"] = len(torch_fl.get_registered_ops())
    facts["fallback policy"] = torch_fl.get_fallback_policy()
    facts["forced route"] = _C._get_forced_route()
    return facts


def _autoload_text() -> str:
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        return "no, TORCH_DEVICE_BACKEND_AUTOLOAD=0"
    try:
        return "yes" if _boot.wanted() else "no, neither FLAGOS_DRIVER nor accelerator hardware; `import torch_fl` does"
    except Exception as error:  # noqa: BLE001 - as above
        return f"no, {one_line(error)}"


def _show(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)

    def line(title: str, value: object) -> None:
        console.print(f"[bold]{title:<26}[/bold]", end="")
        console.print(str(value), markup=False)

    for key in ("torch_fl", "torch", "built for torch", "python", "machine", "import torch loads flagos"):
        line(key, facts.get(key, "unknown"))
    line("status", "registered" if facts["registered"] else f"NOT REGISTERED: {facts['reason']}")
    if facts["registered"]:
        line("available drivers", ", ".join(facts["available drivers"]) or "none")
        line("driver folder", facts["driver folder"])
        line("owner of devices", "torch_fl" if facts["owner"] == "torch_fl" else f"torch's {facts['owner']} backend")
        driver = facts["driver"]
        if isinstance(driver, str):
            line("driver", f"NOT LOADED: {driver}")
        else:
            for key in ("name", "path", "platform", "implementation"):
                line(f"driver {key}", driver[key])
            line("driver capabilities", ", ".join(driver["capabilities"]) or "none")
            line("driver lacks", ", ".join(driver["missing_entries"]) or "nothing")
            line("layers, outermost first", ", ".join(driver["layers"]) or "none")
        line("routed operators", facts["routed operators"])
        line("fallback policy", facts["fallback policy"])
        line("forced route", facts["forced route"] or "none")
        if facts["devices"]:
            table = Table("device", "name", "arch", "memory", "free")
            for device in facts["devices"]:
                sizes = size_text(device["total_memory"]), size_text(device["free_memory"])
                table.add_row(f"flagos:{device['index']}", device["name"], device["arch"] or "-", *sizes)
            console.print(table)
        else:
            line("devices", f"none: {facts['unavailable']}")

    console.print("\n[bold]FLAGOS_* variables that are set[/bold]")
    for variable in facts["variables"]:
        meaning = variable["meaning"] or "UNKNOWN: nothing reads it"
        console.print(f"  {variable['name']}={variable['value']}  ({meaning})", markup=False)
    if not facts["variables"]:
        console.print("  none")
    console.print("\n[bold]What registering flagos changes in torch[/bold]")
    for change in facts["changes in torch"]:
        console.print(f"  - {change}", markup=False)
    console.print("\n[bold]Patches of torch in force[/bold]")
    for patch in facts["patches"]:
        console.print(f"  - {patch['name']} (torch {patch['torch_versions']}): {patch['why']}", markup=False)
    if not facts["patches"]:
        console.print("  none")
