#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks a CUDA runtime library for its behaviour in the cases that the cuda driver relies on, and compares.

The expected values were measured on an H200 with toolkit 13, except that of a fill past the end. Needs one device and
nothing but Python. CI runs it on the stand-in that the driver's own tests use, so that the stand-in stays honest:

    python3 tools/gpu/cuda_oracle.py --library libcudart.so.13 --json evidence/driver/cuda-oracle-h200.json
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

KIB = 1 << 10
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
H2H, H2D, D2H = 0, 1, 2


class Oracle:
    """The library with one device buffer, one pinned and one pageable, and a stream."""

    def __init__(self, library: str) -> None:
        self.lib = ctypes.CDLL(library)
        self.rows: list[dict[str, Any]] = []
        self.call("cudaSetDevice", 0)
        self.device = self.pointer("cudaMalloc", ctypes.c_size_t(4 * KIB))
        self.other = self.pointer("cudaMalloc", ctypes.c_size_t(4 * KIB))
        self.pinned = self.pointer("cudaHostAlloc", ctypes.c_size_t(4 * KIB), ctypes.c_uint(0))
        self.pageable = ctypes.create_string_buffer(8 * KIB)
        self.stream = self.pointer("cudaStreamCreateWithFlags", ctypes.c_uint(1))

    def call(self, name: str, *arguments: Any) -> int:
        """The function's status."""
        return getattr(self.lib, name)(*arguments)

    def pointer(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """What a function that must succeed writes to its first argument."""
        out = ctypes.c_void_p()
        status = self.call(name, ctypes.byref(out), *arguments)
        if status != 0:
            raise SystemExit(f"{name}: {status}")
        return out

    def expect(self, case: str, status: int, sets_last_error: bool | None, run: Callable[[], int]) -> None:
        """Runs a case and notes its status and whether it left a last error. None: not asked."""
        self.call("cudaGetLastError")
        got = run()
        left = self.call("cudaGetLastError")
        good = got == status and (sets_last_error is None or left == (got if sets_last_error else 0))
        self.rows.append({"case": case, "status": got, "expected": status, "last_error": left, "good": good})

    def copy(self, dst: Any, src: Any, size: int, kind: int) -> int:
        """A copy on the stream, which is waited for."""
        status = self.call("cudaMemcpyAsync", dst, src, ctypes.c_size_t(size), kind, self.stream)
        self.call("cudaStreamSynchronize", self.stream)
        return status

    def place(self, pointer: Any) -> list[int]:
        """Type and device of an address. The structure is 24 bytes in toolkit 12 and 88 in 13."""
        attributes = (ctypes.c_int * 64)()
        return [self.call("cudaPointerGetAttributes", attributes, pointer), attributes[0], attributes[1]]

    def event(self, flags: int) -> ctypes.c_void_p:
        """A fresh event."""
        return self.pointer("cudaEventCreateWithFlags", ctypes.c_uint(flags))

    def pointers(self) -> None:
        """What the library knows of an address."""
        for name, pointer, expected in (
            ("device", self.device, [0, 2, 0]),
            ("pinned", self.pinned, [0, 1, 0]),
            ("pageable", self.pageable, [0, 0, -2]),
        ):
            got: list[int] = []
            self.expect(
                f"attributes of a {name} pointer", 0, False, lambda p=pointer, g=got: g.extend(self.place(p)) or 0
            )
            self.rows[-1] |= {"attributes": got, "good": self.rows[-1]["good"] and got == expected}

    def memory(self) -> None:
        """Allocating and freeing."""
        out = ctypes.c_void_p()

        def alloc(size: int) -> int:
            return self.call("cudaMalloc", ctypes.byref(out), ctypes.c_size_t(size))

        def free(pointer: Any) -> int:
            return self.call("cudaFree", pointer)

        self.expect("allocate 2^50 bytes", 2, True, lambda: alloc(1 << 50))
        self.expect("allocate 0 bytes", 0, False, lambda: alloc(0))
        self.expect("free NULL", 0, False, lambda: free(None))
        self.expect("free a pinned pointer", 1, True, lambda: free(self.pinned))
        self.expect("free a pageable pointer", 1, True, lambda: free(self.pageable))
        inside = ctypes.c_void_p(self.device.value + 64)
        self.expect("free an interior pointer", 1, True, lambda: free(inside))
        gone = self.pointer("cudaMalloc", ctypes.c_size_t(4 * KIB))
        self.expect("free a block", 0, False, lambda: free(gone))
        self.expect("free it again", 1, True, lambda: free(gone))

    def copies(self) -> None:
        """Copies that lie or reach too far."""
        past = 4 * KIB + 1
        self.expect(
            "copy device to device as host to host", 0, False, lambda: self.copy(self.device, self.other, KIB, H2H)
        )
        self.expect(
            "copy device to device as host to device", 0, False, lambda: self.copy(self.device, self.other, KIB, H2D)
        )
        self.expect(
            "copy past the end of the target", 1, True, lambda: self.copy(self.device, self.pageable, past, H2D)
        )
        self.expect(
            "copy past the end of the source", 1, True, lambda: self.copy(self.pageable, self.device, past, D2H)
        )
        self.expect("copy kind 9", 21, True, lambda: self.copy(self.device, self.other, KIB, 9))
        self.expect(
            "fill past the end",
            1,
            True,
            lambda: self.call("cudaMemsetAsync", self.device, 0, ctypes.c_size_t(past), self.stream),
        )

    def events(self) -> None:
        """Events that are not recorded, not timed or pending."""
        plain, timed, never = self.event(2), self.event(0), self.event(0)
        ms = ctypes.c_float()

        def elapsed(start: ctypes.c_void_p, end: ctypes.c_void_p) -> int:
            return self.call("cudaEventElapsedTime", ctypes.byref(ms), start, end)

        out = ctypes.c_void_p()
        self.expect("set device 99", 101, True, lambda: self.call("cudaSetDevice", 99))
        self.expect("query an event never recorded", 0, False, lambda: self.call("cudaEventQuery", never))
        self.expect(
            "wait for an event never recorded",
            0,
            False,
            lambda: self.call("cudaStreamWaitEvent", self.stream, never, 0),
        )
        for event in (plain, timed):
            self.call("cudaEventRecord", event, self.stream)
        self.call("cudaStreamSynchronize", self.stream)
        self.expect("elapsed with an event never recorded", 400, True, lambda: elapsed(timed, never))
        self.expect("elapsed with an event without timing", 400, True, lambda: elapsed(timed, plain))
        self.expect("wait flags 7", 1, True, lambda: self.call("cudaStreamWaitEvent", self.stream, timed, 7))
        self.expect(
            "event flag 4 alone",
            1,
            True,
            lambda: self.call("cudaEventCreateWithFlags", ctypes.byref(out), ctypes.c_uint(4)),
        )
        gate = threading.Event()
        hold = HOST_FUNCTION(lambda _: gate.wait(20) and None)
        try:
            self.call("cudaLaunchHostFunc", self.stream, hold, None)
            self.call("cudaEventRecord", never, self.stream)
            self.expect("stream query while pending", 600, False, lambda: self.call("cudaStreamQuery", self.stream))
            self.expect("event query while pending", 600, False, lambda: self.call("cudaEventQuery", never))
            self.expect("elapsed while pending", 600, False, lambda: elapsed(timed, never))
        finally:
            gate.set()
            self.call("cudaStreamSynchronize", self.stream)


def main() -> int:
    """Runs all cases; 0 when every one is as measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="libcudart.so.13")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    oracle = Oracle(options.library)
    version = ctypes.c_int()
    oracle.call("cudaRuntimeGetVersion", ctypes.byref(version))
    for area in (oracle.pointers, oracle.memory, oracle.copies, oracle.events):
        area()
    bad = [row for row in oracle.rows if not row["good"]]
    for row in bad:
        print(f"DIFFERS {row}")
    if options.json:
        record = {"suite": "cuda oracle", "runtime": version.value, "good": not bad, "cases": oracle.rows}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"cuda oracle: {len(oracle.rows)} cases, {len(bad)} differ; runtime {version.value}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
