# SPDX-License-Identifier: Apache-2.0
"""`torch-fl conformance ops`: every entry of op_db, on the device and on the reference."""

from __future__ import annotations

import sys
import zlib
from typing import Any

from conformance.ops.run import Beacon, apply_expectation, finish_options, parser, run_suite

DEFAULT_DTYPES = "f32,bf16,c64,i64,bool"
LAYOUTS = ("strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")


class OpSuite:
    """Entries are "name dtype"; built inside a worker process."""

    def __init__(self, options: dict[str, Any]) -> None:
        from conformance.ops.device import open_device
        from conformance.ops.entry import FORMS, Setting, quiet
        from conformance.ops.expectations import Expectations

        self.options = options
        device = open_device(options["device"])
        reference = open_device(options["against"])
        quiet()
        from torch.testing._internal.common_methods_invocations import op_db

        self.infos = {op.full_name: op for op in op_db}
        self.expectations = Expectations.load("ops", device.type, reference.type)
        forms = tuple(options["forms"].split(",")) if options["forms"] else FORMS
        layouts = tuple(options["layouts"].split(","))
        self.setting = Setting(device, reference, options["sample_count"], forms, layouts)
        self._first_dtype = {}
        for key in self.keys():
            name, dtype = key.rsplit(" ", 1)
            self._first_dtype.setdefault(name, dtype)

    def keys(self) -> list[str]:
        """All entries that the reference supports."""
        from conformance.ops.device import chosen_dtypes

        keys = []
        for name, op in self.infos.items():
            supported = set(op.supported_dtypes(self.setting.reference.type))
            dtypes = chosen_dtypes(self.options["dtypes"], supported)
            if self.options["quick"] and len(dtypes) > 1:
                # the first, and one of the others by a hash of the name: stable, and every dtype gets its share
                dtypes = [dtypes[0], dtypes[1 + zlib.crc32(name.encode()) % (len(dtypes) - 1)]]
            keys += [f"{name} {dtype}" for dtype in dtypes]
        return keys

    def run(self, key: str, beacon: Beacon) -> Any:
        """Runs one entry."""
        from dataclasses import replace

        from conformance.ops.device import DTYPES
        from conformance.ops.entry import EntryRunner
        from conformance.ops.result import SKIPPED, EntryResult

        name, dtype = key.rsplit(" ", 1)
        skip = self.expectations.find("skip", name, dtype)
        if skip:
            return EntryResult(key=key, status=SKIPPED, reason=skip["reason"])
        setting = self.setting
        if dtype != self._first_dtype[name]:  # error inputs have no dtype: once per operator
            setting = replace(setting, forms=tuple(f for f in setting.forms if f != "errors"))
        rules = self.expectations.rules(name, dtype)
        result = EntryRunner(self.infos[name], DTYPES[dtype], setting, rules, beacon).run()
        strict = self.options["sample_count"] == 0 and not self.options["forms"]
        return apply_expectation(result, self.expectations.find("expect", name, dtype), strict)


def make_suite(options: dict[str, Any]) -> OpSuite:
    """Called in each worker."""
    return OpSuite(options)


def main(argv: list[str]) -> int:
    """Entry point of the command line; returns the exit code."""
    p = parser("ops", DEFAULT_DTYPES, "Runs the operator database of the installed torch on the device.")
    p.add_argument("--forms", default="", help="comma-separated subset of forward, backward, in_place, ...")
    p.add_argument("--layouts", default="strided", help=f"comma-separated, of {', '.join(LAYOUTS)}")
    args = finish_options(p, argv)
    wrong = set(args.layouts.split(",")) - set(LAYOUTS)
    if wrong:
        p.error(f"--layouts: unknown {', '.join(sorted(wrong))}")
    return run_suite("ops", "conformance.ops.op_suite", args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
