# SPDX-License-Identifier: Apache-2.0
"""Small pieces of text that several modules print. Standard library only."""

from __future__ import annotations


def size_text(size: int) -> str:
    """A number of bytes for people, such as "1.5 MiB"."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def one_line(error: BaseException) -> str:
    """The message of an error on one line, its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
