# SPDX-License-Identifier: Apache-2.0
"""Checks that vendor names stand only where they may. The words are in tools/vendor_words.txt.

A line that needs one elsewhere, such as a name of torch's own interface, says why: `vendor-word: REASON` in a comment
on that line, or in a comment line before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import tree

ALLOWED_PLACES = re.compile(
    r"(drivers|kernels|conformance|tests|tools|evidence|docs)/"
    r"|src/torch/targets/[^/]+/"
    r"|python/torch_fl/configs/"
    r"|(README|CHANGELOG|CONTRIBUTING)\.md$"
    r"|LICENSE$"
)
ALLOWED_LINE = re.compile(r"vendor-word: *\S")
# The parts of an identifier: is_cuda -> is, cuda; kCUDA -> k, CUDA; CUDAGuard -> CUDA, Guard; libcuda12 -> libcuda.
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def read_words(root: Path) -> set[str]:
    """The words of tools/vendor_words.txt."""
    path = root / "tools" / "vendor_words.txt"
    stripped = (line.split("#")[0].strip().lower() for line in path.read_text(encoding="utf-8").splitlines())
    return {word for word in stripped if word}


def words_in(text: str, words: set[str]) -> list[str]:
    """The vendor words that a text holds, sorted."""
    parts = [part.lower() for part in PART.findall(text)]
    found = words.intersection(parts + [part.removeprefix("lib") for part in parts])
    for word in words:
        if "-" in word and re.search(rf"(?<![a-z]){re.escape(word)}(?![a-z])", text.lower()):
            found.add(word)
    return sorted(found)


def check(root: Path) -> Iterator[str]:
    """Yields one line for each vendor word in a place where it may not be."""
    words = read_words(root)
    for name in tree.files(root):
        if ALLOWED_PLACES.match(name):
            continue
        for word in words_in(name, words):
            yield f"{name}: the vendor word '{word}' is in the name"
        before = ""
        for number, line in enumerate(tree.lines(root, name), 1):
            if not ALLOWED_LINE.search(line) and not (is_comment(before) and ALLOWED_LINE.search(before)):
                for word in words_in(line, words):
                    yield f"{name}:{number}: the vendor word '{word}' may not stand here"
            before = line


def is_comment(line: str) -> bool:
    """True when the whole line is a comment, so that an allowance in it is meant for the next one."""
    return line.lstrip().startswith(("#", "//", "/*", "*"))


if __name__ == "__main__":
    tree.run(check)
