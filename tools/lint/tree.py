# SPDX-License-Identifier: Apache-2.0
"""What the checks of this folder share: the files of a tree, and how findings are reported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

SOURCE_SUFFIXES = {".c", ".h", ".cc", ".cpp", ".def", ".py", ".pyi", ".sh", ".cmake"}
SOURCE_NAMES = {"CMakeLists.txt", "dev", ".ci/run"}


def files(root: Path) -> list[str]:
    """Paths relative to `root`, sorted: what git tracks or would track; everything where there is no git."""
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = [name for name in output.split("\0") if name and (root / name).is_file()]
    else:
        found = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
    return sorted(set(found))


def is_source(name: str) -> bool:
    """True for files that people write as code."""
    path = Path(name)
    return path.suffix in SOURCE_SUFFIXES or path.name in SOURCE_NAMES or name in SOURCE_NAMES


def lines(root: Path, name: str) -> list[str]:
    """The lines of a text file; none for a binary one."""
    try:
        return (root / name).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return []


def run(check: Callable[[Path], Iterator[str]]) -> None:
    """Runs a check on the tree named on the command line (default: this one); exit status 1 when it finds anything."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    findings = list(check(root))
    for finding in findings:
        print(finding)
    print(f"{Path(sys.argv[0]).stem}: {len(findings)} findings")
    sys.exit(1 if findings else 0)
