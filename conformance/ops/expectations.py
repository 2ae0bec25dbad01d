# SPDX-License-Identifier: Apache-2.0
"""Reads an expectation file: what is skipped, and which differences are known, each with its reason.

Tables (each may occur many times; `op` is a regular expression over the whole entry name without its dtype):
  [[skip]]           op, reason                       the entry is not run
  [[expect]]         op, reason                       the entry must differ or fail; if it agrees, the run fails
  [[metadata_only]]  op, reason                       results are uninitialised: only metadata is compared
  [[cpu_result]]     op, reason                       results may lie on the CPU
  [[tolerance]]      op, rtol, atol, reason           allowed closeness of floating results
Each may also be narrowed by `dtype` (regular expression over f32, bf16, ...), `device`, `against` (names), and `torch`
(comma-separated comparisons with major.minor, as in ">=2.11,<2.13").
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import torch

from conformance.ops.entry import Rules

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).resolve().parent.parent / "expectations"
_TABLES = {"skip", "expect", "metadata_only", "cpu_result", "tolerance"}
_KEYS = {"op", "reason", "dtype", "device", "against", "torch", "rtol", "atol"}


class Expectations:
    """The rules of one file that apply to this torch version and this pair of devices."""

    def __init__(self, data: dict[str, Any], device: str, against: str, version: str = torch.__version__) -> None:
        self._rules: dict[str, list[dict[str, Any]]] = {name: [] for name in _TABLES}
        for table, rules in data.items():
            if table not in _TABLES:
                raise ValueError(f"unknown table [[{table}]]; known: {', '.join(sorted(_TABLES))}")
            for rule in rules:
                unknown = set(rule) - _KEYS
                if unknown or "op" not in rule or not rule.get("reason"):
                    raise ValueError(f"[[{table}]] {rule}: needs op and reason; unknown keys: {sorted(unknown)}")
                fits = rule.get("device", device) == device and rule.get("against", against) == against
                if fits and version_matches(rule.get("torch", ""), version):
                    self._rules[table].append(rule)

    @staticmethod
    def load(suite: str, device: str, against: str) -> Expectations:
        """Reads expectations/<suite>.toml; a suite without a file has no exceptions."""
        path = FOLDER / f"{suite}.toml"
        data = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return Expectations(data, device, against)

    def find(self, table: str, name: str, dtype: str) -> dict[str, Any] | None:
        """The first rule of `table` that matches the entry, or None."""
        for rule in self._rules[table]:
            if re.fullmatch(rule["op"], name) and re.fullmatch(rule.get("dtype", ".*"), dtype):
                return rule
        return None

    def rules(self, name: str, dtype: str) -> Rules:
        """How results of this entry are compared."""
        tolerance = self.find("tolerance", name, dtype)
        return Rules(
            metadata_only=self.find("metadata_only", name, dtype) is not None,
            cpu_result=self.find("cpu_result", name, dtype) is not None,
            tolerance=(tolerance["rtol"], tolerance["atol"]) if tolerance else None,
        )


def version_matches(spec: str, version: str) -> bool:
    """True if `version` ("2.11.0+cpu") fulfils every comparison of `spec` (">=2.10,<2.12"); "" always holds."""
    have = tuple(int(n) for n in version.split("+")[0].split(".")[:2])
    for part in filter(None, (p.strip() for p in spec.split(","))):
        match = re.fullmatch(r"(<=|>=|==|<|>)\s*(\d+)\.(\d+)", part)
        if not match:
            raise ValueError(f"bad torch version range {spec!r}")
        sign, bound = match[1], (int(match[2]), int(match[3]))
        order = (have > bound) - (have < bound)
        if order not in {"<": (-1,), "<=": (-1, 0), "==": (0,), ">=": (0, 1), ">": (1,)}[sign]:
            return False
    return True
