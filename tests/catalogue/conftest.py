# SPDX-License-Identifier: Apache-2.0
"""One test per public bug report, named by its id in the catalogue. Helpers and fixtures are those of tests/python."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_BEHAVIOUR_TESTS = Path(__file__).resolve().parents[1] / "python"
sys.path.insert(0, str(_BEHAVIOUR_TESTS))

# pytest keeps the conftest files of sibling folders apart, so the fixtures are taken over by hand.
_spec = importlib.util.spec_from_file_location("behaviour_conftest", _BEHAVIOUR_TESTS / "conftest.py")
assert _spec is not None and _spec.loader is not None
_conftest = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_conftest)

_fresh = _conftest._fresh
two_devices = _conftest.two_devices
forced_cpu = _conftest.forced_cpu
