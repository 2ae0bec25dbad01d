# SPDX-License-Identifier: Apache-2.0
"""Finds and runs the programs that live beside the package: conformance suites and benchmarks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import torch_fl


def source_root() -> Path | None:
    """The source tree of an editable install, None for an installed wheel."""
    root = Path(torch_fl.__file__).resolve().parents[2]
    return root if (root / "include" / "torch_fl" / "driver.h").is_file() else None


def run_program(module: str, arguments: Sequence[str], folder: str = "") -> int:
    """Imports `module` and returns the exit code of its `main(arguments)`.

    Looks in the source tree, then in `torch_fl/_conformance`, where a wheel carries the suites; `folder` is where the
    module lies below those. The place stays in `sys.path`, because worker processes of a suite need it.

    Raises:
        RuntimeError: there is no such program here.
    """
    places = [source_root(), Path(torch_fl.__file__).resolve().parent / "_conformance"]
    file = Path(*module.split(".")).with_suffix(".py")
    for place in (place / folder for place in places if place):
        if (place / file).is_file():
            sys.path.insert(0, str(place))
            return importlib.import_module(module).main(list(arguments))
    raise RuntimeError(f"{Path(folder, file)} is not part of this installation; use a source checkout")
