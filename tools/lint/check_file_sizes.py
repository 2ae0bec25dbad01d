# SPDX-License-Identifier: Apache-2.0
"""Checks that source files stay short: a file over 500 lines needs a reason, none may pass 800.

Reasons stand in tools/lint/long_files.txt, one a line: `path: reason`. An entry that is no longer needed is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import tree

LIMIT = 500
CEILING = 800


def read_reasons(root: Path) -> dict[str, str]:
    """path -> reason, from tools/lint/long_files.txt."""
    reasons = {}
    for line in (root / "tools" / "lint" / "long_files.txt").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, reason = line.partition(":")
            reasons[name.strip()] = reason.strip()
    return reasons


def check(root: Path) -> Iterator[str]:
    """Yields files that are too long, and reasons that are empty or not needed."""
    reasons = read_reasons(root)
    needed = set()
    for name in tree.files(root):
        length = len(tree.lines(root, name)) if tree.is_source(name) else 0
        if length > CEILING:
            yield f"{name}: {length} lines, the ceiling is {CEILING}"
        elif length > LIMIT and not reasons.get(name):
            yield f"{name}: {length} lines, over {LIMIT} without a reason in tools/lint/long_files.txt"
        if length > LIMIT:
            needed.add(name)
    for name in sorted(reasons.keys() - needed):
        yield f"tools/lint/long_files.txt: {name} needs no reason any more"


if __name__ == "__main__":
    tree.run(check)
