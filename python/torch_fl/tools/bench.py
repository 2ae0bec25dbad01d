# SPDX-License-Identifier: Apache-2.0
"""Measures what flagos costs. Figures are ratios and differences against a baseline of the same run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from torch_fl import _boot
from torch_fl.tools.source import run_program

NAME = "bench"
HELP = "measure what flagos costs on the host"
PROGRAMS = {"host": "host_overhead"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The benchmark; its own options follow it."""
    parser.add_argument("program", choices=PROGRAMS, help="`torch-fl bench PROGRAM --help` for its options")


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:
    """Runs the benchmark with the options that follow its name."""
    _boot.activate()
    return run_program(PROGRAMS[options.program], rest, "bench")
