# SPDX-License-Identifier: Apache-2.0
"""Writes the allocations of a real run as a trace for torch_fl_allocator_replay.

From a snapshot that was saved (a pickle in the format of torch.cuda.memory._snapshot):
    record_trace.py trace.txt --snapshot snapshot.pickle
or around a script, on any device module that has memory history:
    record_trace.py trace.txt --module flagos --run train.py --epochs 1
"""

from __future__ import annotations

import argparse
import pickle
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# A run of some minutes has a few million entries; the ring must hold all, or frees without allocations are left.
MAX_ENTRIES = 50_000_000


def trace_lines(snapshot: dict[str, Any], device: int = 0) -> Iterator[str]:
    """The lines of a trace: ``a ID SIZE STREAM`` and ``f ID``.

    ``snapshot`` has ``device_traces`` as torch.cuda.memory._snapshot gives them: for each device a list of entries with
    ``action``, ``addr``, ``size`` (bytes) and ``stream``, oldest first. A block counts as freed when its memory can be
    used again (``free_completed``). Frees of blocks that were allocated before the history began are left out. Streams
    are numbered in the order they appear; 0 stays 0, the default stream.
    """
    numbers: dict[int, int] = {}
    streams: dict[int, int] = {0: 0}
    next_number = 0
    for entry in snapshot["device_traces"][device]:
        address = entry["addr"]
        if entry["action"] == "alloc":
            next_number += 1
            numbers[address] = next_number
            stream = streams.setdefault(entry["stream"], len(streams))
            yield f"a {next_number} {entry['size']} {stream}"
        elif entry["action"] == "free_completed" and address in numbers:
            yield f"f {numbers.pop(address)}"


def run_with_history(module: str, script: str, arguments: list[str]) -> dict[str, Any]:
    """Runs a script as __main__ with the memory history of ``torch.<module>`` on; its snapshot afterwards."""
    import torch

    if module == "flagos":
        import torch_fl  # noqa: F401
    memory = getattr(torch, module).memory
    memory._record_memory_history(context=None, max_entries=MAX_ENTRIES)
    saved = sys.argv
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv = saved
    snapshot: dict[str, Any] = memory._snapshot()
    memory._record_memory_history(enabled=None)
    return snapshot


def main(arguments: list[str] | None = None) -> int:
    """Command line; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="file to write")
    parser.add_argument("--device", type=int, default=0, help="device index (0)")
    parser.add_argument("--module", default="flagos", help="torch.<module> whose memory is watched (flagos)")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--snapshot", type=Path, help="pickle of a snapshot; read only those you trust")
    source.add_argument("--run", nargs=argparse.REMAINDER, metavar="SCRIPT", help="script to run, and its arguments")
    chosen = parser.parse_args(arguments)
    if chosen.snapshot is not None:
        with chosen.snapshot.open("rb") as file:
            snapshot = pickle.load(file)
    elif chosen.run:
        snapshot = run_with_history(chosen.module, chosen.run[0], chosen.run[1:])
    else:
        parser.error("--run needs a script")
    count = 0
    with chosen.trace.open("w") as out:
        for line in trace_lines(snapshot, chosen.device):
            out.write(line + "\n")
            count += 1
    print(f"{chosen.trace}: {count} events")
    return 0 if count else 1


if __name__ == "__main__":
    sys.exit(main())
