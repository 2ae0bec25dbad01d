# SPDX-License-Identifier: Apache-2.0
"""Checks who may include whom: base <- runtime, router <- torch <- python; drivers see driver.h, sdk and themselves."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

import tree

INCLUDE = re.compile(r'^\s*#\s*include\s*(?P<open>[<"])(?P<path>[^>"]+)[>"]')
# Written into the build folder from the installed torch; the torch layer alone may read it.
GENERATED = "torch_fl_generated/"
# Headers of torch and of what torch brings.
TORCH = ("ATen/", "c10/", "caffe2/", "torch/")
PYTHON = ("pybind11/", "Python.h", "torch/csrc/autograd/python", "torch/csrc/utils/pybind", "torch/extension.h")

# Folder of src/ -> folders of src/ that it may include.
LAYERS = {
    "base": {"base"},
    "runtime": {"base", "runtime"},
    "router": {"base", "router"},
    "torch": {"base", "runtime", "router", "torch"},
    "python": {"base", "runtime", "router", "torch", "python"},
}


def resolve(root: Path, including: str, path: str) -> str | None:
    """The file of the tree that an include means, or None when it comes from outside."""
    folders = [posixpath.dirname(including), "src", "include", "drivers"]
    for folder in folders:
        name = posixpath.normpath(posixpath.join(folder, path))
        if (root / name).is_file():
            return name
    return None


def complaint(root: Path, name: str, path: str, quoted: bool) -> str | None:
    """Why the file `name` may not include `path`, or None."""
    parts = name.split("/")
    target = resolve(root, name, path)
    if target is None and quoted and not path.startswith((*TORCH, GENERATED)):
        return "is not a file of the tree"
    if parts[0] == "include":
        return None if target is None and not path.startswith(TORCH) else "the public header stands alone"
    if parts[0] == "drivers":
        return driver_complaint(parts[1], path, target)
    return layer_complaint(parts[1], path, target)


def driver_complaint(driver: str, path: str, target: str | None) -> str | None:
    if target is None:
        return "a driver may not use torch" if path.startswith((*TORCH, GENERATED)) else None
    if target == "include/torch_fl/driver.h" or target.startswith((f"drivers/{driver}/", "drivers/sdk/")):
        return None
    return "a driver includes torch_fl/driver.h, its own folder and drivers/sdk only"


def layer_complaint(layer: str, path: str, target: str | None) -> str | None:
    if layer not in LAYERS:
        return f"src/{layer} is not a layer; add it to tools/lint/check_layers.py"
    if target is None:
        if path.startswith(PYTHON) and layer != "python":
            return f"src/{layer} may not use Python"
        if path.startswith((*TORCH, GENERATED)) and layer not in ("torch", "python"):
            return f"src/{layer} may not use torch"
        return None
    if target.startswith("include/"):
        return None
    if not target.startswith("src/"):
        return "leaves src/"
    target_layer = target.split("/")[1]
    return None if target_layer in LAYERS[layer] else f"src/{layer} may not include src/{target_layer}"


def check(root: Path) -> Iterator[str]:
    """Yields one line for each include that breaks the rule."""
    for name in tree.files(root):
        if not name.startswith(("include/", "drivers/", "src/")) or not name.endswith((".c", ".h", ".cc", ".cpp")):
            continue
        for number, line in enumerate(tree.lines(root, name), 1):
            match = INCLUDE.match(line)
            if match is None:
                continue
            reason = complaint(root, name, match["path"], match["open"] == '"')
            if reason is not None:
                yield f"{name}:{number}: {match['path']}: {reason}"


if __name__ == "__main__":
    tree.run(check)
