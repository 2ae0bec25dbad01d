# SPDX-License-Identifier: Apache-2.0
"""Checks that the package says the version of pyproject.toml, which is the one that CMake and wheels take."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import tree

PLACES = {"pyproject.toml": r'^version = "(.*)"$', "python/torch_fl/__init__.py": r'^__version__ = "(.*)"$'}


def check(root: Path) -> Iterator[str]:
    """Yields one line when a version is missing or the versions differ."""
    versions = {}
    for name, pattern in PLACES.items():
        match = re.search(pattern, "\n".join(tree.lines(root, name)), re.MULTILINE)
        if match is None:
            yield f"{name}: no version found"
        else:
            versions[name] = match[1]
    if len(set(versions.values())) > 1:
        yield f"versions differ: {versions}"


if __name__ == "__main__":
    tree.run(check)
