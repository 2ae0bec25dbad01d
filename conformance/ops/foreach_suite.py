# SPDX-License-Identifier: Apache-2.0
"""`torch-fl conformance foreach`: the foreach databases, out of place and in place, `_version` counters included."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

from conformance.ops.run import Beacon, apply_expectation, finish_options, parser, run_suite

DEFAULT_DTYPES = "f32,bf16,c64,i64,bool"
_DATABASES = ("unary", "binary", "pointwise", "reduce", "other")


class ForeachSuite:
    """Entries are "name dtype"; built inside a worker process."""

    def __init__(self, options: dict[str, Any]) -> None:
        from conformance.ops.device import open_device
        from conformance.ops.entry import Setting, quiet
        from conformance.ops.expectations import Expectations

        self.options = options
        device = open_device(options["device"])
        reference = open_device(options["against"])
        quiet()
        from torch.testing._internal import common_methods_invocations as databases

        lists = [getattr(databases, f"foreach_{name}_op_db") for name in _DATABASES]
        self.infos = {op.full_name: op for op in itertools.chain(*lists)}
        self.expectations = Expectations.load("foreach", device.type, reference.type)
        self.setting = Setting(device, reference, options["sample_count"], ("forward", "backward", "in_place"))

    def keys(self) -> list[str]:
        """All entries that the reference supports."""
        from conformance.ops.device import chosen_dtypes

        keys = []
        for name, op in self.infos.items():
            supported = set(op.supported_dtypes(self.setting.reference.type))
            keys += [f"{name} {dtype}" for dtype in chosen_dtypes(self.options["dtypes"], supported)]
        return keys

    def run(self, key: str, beacon: Beacon) -> Any:
        """Runs one entry."""
        from conformance.ops.device import DTYPES
        from conformance.ops.entry import EntryRunner
        from conformance.ops.result import SKIPPED, EntryResult

        class Runner(EntryRunner):
            """The same forms, on dense and strided lists, and on lists of empty tensors."""

            def make_samples(self, layout: str, grad: bool) -> Iterator[Any]:
                options = {"requires_grad": grad, "allow_higher_dtype_scalars": True}
                for noncontiguous in (False, True):
                    yield from self.op.sample_inputs(
                        self.set.device, self.dtype, noncontiguous=noncontiguous, set_seed=False, **options
                    )
                yield from self.op.sample_zero_size_inputs(self.set.device, self.dtype, **options)

        name, dtype = key.rsplit(" ", 1)
        skip = self.expectations.find("skip", name, dtype)
        if skip:
            return EntryResult(key=key, status=SKIPPED, reason=skip["reason"])
        rules = self.expectations.rules(name, dtype)
        result = Runner(self.infos[name], DTYPES[dtype], self.setting, rules, beacon).run()
        strict = self.options["sample_count"] == 0
        return apply_expectation(result, self.expectations.find("expect", name, dtype), strict)


def make_suite(options: dict[str, Any]) -> ForeachSuite:
    """Called in each worker."""
    return ForeachSuite(options)


def main(argv: list[str]) -> int:
    """Entry point of the command line; returns the exit code."""
    p = parser("foreach", DEFAULT_DTYPES, "Runs the foreach databases of the installed torch on the device.")
    return run_suite("foreach", "conformance.ops.foreach_suite", finish_options(p, argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
