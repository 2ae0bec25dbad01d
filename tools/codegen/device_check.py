# SPDX-License-Identifier: Apache-2.0
"""Writes the operators that native_functions.yaml marks `device_check: NoCheck` as C++ string literals.

The list belongs to the installed torch, so it is made at build time and never committed.
Usage: device_check.py OUTPUT
"""

import re
import sys
from pathlib import Path

import torchgen


def no_check_ops(yaml_text: str) -> list[str]:
    """Names ("add.Tensor") in the order of the file. The file is regular enough that no YAML parser is needed."""
    ops: list[str] = []
    current = ""
    for line in yaml_text.splitlines():
        if match := re.match(r"- func: ([\w.]+)\(", line):
            current = match[1]
        elif re.match(r"\s+device_check:\s*NoCheck", line):
            ops.append(current)
    return ops


def main() -> None:
    source = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"
    ops = no_check_ops(source.read_text())
    if len(ops) < 300:
        sys.exit(f"device_check.py: only {len(ops)} operators found in {source}; has the format of the file changed?")
    text = "".join(f'"aten::{op}",\n' for op in sorted(set(ops)))
    output = Path(sys.argv[1])
    output.parent.mkdir(parents=True, exist_ok=True)
    if not output.exists() or output.read_text() != text:
        output.write_text(text)


if __name__ == "__main__":
    main()
