# SPDX-License-Identifier: Apache-2.0
"""Checks that each source file names its license near the top."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import tree

# In two pieces, so that this line is not taken for the tag.
TAG = "SPDX-License-" + "Identifier: Apache-2.0"


def check(root: Path) -> Iterator[str]:
    """Yields the source files without the tag in their first three lines."""
    for name in tree.files(root):
        text = tree.lines(root, name) if tree.is_source(name) else []
        if text and not any(TAG in line for line in text[:3]):
            yield f"{name}: no line '{TAG}' at the top"


if __name__ == "__main__":
    tree.run(check)
