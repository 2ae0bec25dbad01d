# SPDX-License-Identifier: Apache-2.0
"""Proves the device against the CPU (every operator, module, optimizer and foreach function of torch), or a driver."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from torch_fl import _boot
from torch_fl.tools.source import run_program

NAME = "conformance"
HELP = "prove operators, modules, optimizers against the CPU; prove a driver"
SUITES = {
    "ops": "conformance.ops.op_suite",
    "modules": "conformance.ops.module_suite",
    "optimizers": "conformance.ops.optimizer_suite",
    "foreach": "conformance.ops.foreach_suite",
    "driver": "conformance.driver_suite",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The suite; its own options follow it."""
    parser.add_argument("suite", choices=SUITES, help="`torch-fl conformance SUITE --help` for its options")


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:
    """Runs the suite with the options that follow its name."""
    # A driver is proved in processes of its own: one that cannot even be loaded must get its report.
    if options.suite != "driver":
        _boot.activate()
    return run_program(SUITES[options.suite], rest)
