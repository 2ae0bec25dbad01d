# SPDX-License-Identifier: Apache-2.0
"""The part that all suites share: options, running, progress, resuming, reports and run records."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from conformance.ops.pool import Pool
from conformance.ops.result import AGREE, DIFFER, ERROR, SKIPPED, EntryResult, Totals

Beacon = Callable[[str], None]  # told where a worker is, see pool.py
QUICK_SAMPLES = 3


def parser(suite: str, dtypes: str, description: str) -> argparse.ArgumentParser:
    """The options that every suite has. `dtypes` is the default of --dtypes."""
    p = argparse.ArgumentParser(prog=f"torch-fl conformance {suite}", description=description)
    p.add_argument("--device", default="flagos", help="the device under test (default: flagos)")
    p.add_argument("--against", default="cpu", help="the reference device (default: cpu)")
    p.add_argument("--samples", default="all", help="all, quick, or how many samples of each entry (default: all)")
    p.add_argument("--quick", action="store_true", help="a stable subset that takes at most two minutes")
    p.add_argument("--dtypes", default=dtypes, help=f"comma-separated, or any: one per entry (default: {dtypes})")
    p.add_argument("--ops", default="", metavar="REGEX", help="only entries whose name contains a match")
    p.add_argument("--shard", default="0/1", metavar="I/N", help="every N-th entry, starting at I")
    p.add_argument("--jobs", type=int, default=2, help="worker processes, one thread each (default: 2)")
    p.add_argument("--deadline", type=float, default=600.0, help="seconds after which an entry is given up")
    p.add_argument("--resume", type=Path, metavar="FILE", help="keep finished entries here and continue from it")
    p.add_argument("--json", type=Path, metavar="FILE", help="write a run record")
    p.add_argument("--verbose", action="store_true", help="details of every failure, and every skipped entry")
    p.add_argument("--list", action="store_true", help="print the entries and stop")
    return p


def finish_options(p: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Parses and checks; sets `sample_count` (0: all)."""
    args = p.parse_args(argv)
    if args.quick and args.samples == "all":
        args.samples = "quick"
    if args.samples in ("all", "quick"):
        args.sample_count = 0 if args.samples == "all" else QUICK_SAMPLES
    elif args.samples.isdigit() and int(args.samples) > 0:
        args.sample_count = int(args.samples)
    else:
        p.error(f"--samples {args.samples}: all, quick or a positive number")
    if not re.fullmatch(r"\d+/[1-9]\d*", args.shard) or not _shard(args.shard)[0] < _shard(args.shard)[1]:
        p.error(f"--shard {args.shard}: I/N with 0 <= I < N")
    if args.jobs < 1:
        p.error("--jobs: at least 1")
    try:
        re.compile(args.ops)
    except re.error as e:
        p.error(f"--ops: {e}")
    return args


def _shard(text: str) -> tuple[int, int]:
    i, n = text.split("/")
    return int(i), int(n)


def worker_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options that decide what an entry's result is; they travel to the workers and fingerprint a state file."""
    skip = {"resume", "json", "verbose", "jobs", "list", "shard", "ops", "deadline"}
    return {k: v for k, v in vars(args).items() if k not in skip}


def run_suite(suite: str, module: str, args: argparse.Namespace) -> int:
    """Runs the suite whose `make_suite` lives in `module`; returns the exit code."""
    options = worker_options(args)
    started = time.monotonic()
    state = State(args.resume, {"suite": suite, **options, **versions()})
    pool = Pool(module, options, args.jobs, args.deadline)
    try:
        keys = [k for k in pool.keys() if re.search(args.ops, k.split(" ")[0])]
        first, step = _shard(args.shard)
        keys = keys[first::step]
        if args.list:
            print("\n".join(keys))
            return 0
        results = {k: state.known[k] for k in keys if k in state.known}
        with Progress(suite, len(keys), len(results)) as progress:

            def done(result: EntryResult) -> None:
                results[result.key] = result
                state.add(result)
                progress.advance(result.samples)
                for line in describe(result, args.verbose):
                    progress.say(line)

            for known in list(results.values()):
                for line in describe(known, args.verbose):
                    progress.say(line)
            pool.run([k for k in keys if k not in results], done, progress.tick)
    finally:
        pool.close()
        state.close()
    ordered = [results[k] for k in keys]
    totals = Totals.of(ordered)
    seconds = time.monotonic() - started
    if args.json:
        write_record(args.json, suite, args, ordered, totals, seconds)
    print(f"time: {seconds:.0f} s elapsed, {totals.cpu_seconds:.0f} s of processor time in entries, {args.jobs} jobs")
    print("\n".join(totals.lines(suite)))
    sys.stdout.flush()
    return 0 if totals.good() else 1


def describe(result: EntryResult, verbose: bool) -> list[str]:
    """Lines about an entry that did not simply agree."""
    if result.status == AGREE or (result.status == SKIPPED and not verbose):
        return []
    if result.status == SKIPPED:
        return [f"SKIPPED {result.key}: {result.expected or result.reason}"]
    lines = []
    for f in result.failures:
        word = "ERROR" if f.error else "DIFFER"
        lines.append(f"{word} {result.key} sample {f.sample} {f.kind}: {f.line}")
        if verbose and f.detail:
            lines.extend("    " + text for text in f.detail.rstrip().splitlines())
        elif not verbose and len(lines) >= 3:
            break
    if result.failed_checks > len(lines) and not verbose:
        lines.append(f"      {result.key}: {result.failed_checks} failed checks in all")
    return lines


def versions() -> dict[str, str]:
    """torch, Python; read from package metadata so that the parent process need not load torch."""
    from importlib.metadata import version

    return {"torch": version("torch"), "python": platform.python_version()}


def machine() -> dict[str, Any]:
    """Processor, cores and memory, without names or paths of the machine."""
    model = platform.machine()
    memory = 0
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            model = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), model)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    except (OSError, ValueError):
        pass
    return {
        "processor": model,
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_mib": memory,
        "system": f"{platform.system()} {platform.release()}",
    }


def write_record(
    path: Path, suite: str, args: argparse.Namespace, results: list[EntryResult], totals: Totals, seconds: float
) -> None:
    """Writes the run record: what ran, where, and every entry that did not agree."""
    environment = {k: v for k, v in sorted(os.environ.items()) if k.startswith("FLAGOS_") and "/" not in v}
    record = {
        "suite": suite,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "environment": environment,
        "options": {**worker_options(args), "ops": args.ops, "shard": args.shard, "jobs": args.jobs},
        "seconds": round(seconds, 1),
        "cpu_seconds": round(totals.cpu_seconds, 1),
        "good": totals.good(),
        "samples": totals.samples,
        "entries": {"all": totals.entries, **{s: totals.by_status[s] for s in (AGREE, DIFFER, ERROR, SKIPPED)}},
        "expected_differences": totals.expected,
        "checks": dict(sorted(totals.checks.items())),
        "stats": dict(sorted(totals.stats.items())),
        "not_agreeing": [r.to_json() for r in results if r.status != AGREE],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


class State:
    """Finished entries in a JSON-lines file: the first line says which run they belong to."""

    def __init__(self, path: Path | None, identity: dict[str, Any]) -> None:
        self.known: dict[str, EntryResult] = {}
        self._file: TextIO | None = None
        if path is None:
            return
        if path.exists():
            self._read(path, identity)
        self._file = path.open("a" if self.known else "w", encoding="utf-8")
        if not self.known:
            self._line({"identity": identity})

    def _read(self, path: Path, identity: dict[str, Any]) -> None:
        lines = path.read_text(encoding="utf-8").splitlines()
        try:
            if not lines or json.loads(lines[0])["identity"] != json.loads(json.dumps(identity)):
                print(f"{path.name}: from another run (options or versions differ), starting over", file=sys.stderr)
                return
            for line in lines[1:]:
                result = EntryResult.from_json(json.loads(line))
                self.known[result.key] = result
        except (ValueError, KeyError, TypeError):
            # the run was cut off inside a line: what was read before it is sound, the rest runs again
            path.write_text("".join(line + "\n" for line in lines[: len(self.known) + 1]), encoding="utf-8")

    def add(self, result: EntryResult) -> None:
        """Keeps a finished entry; a run that is killed loses at most the entry in work."""
        self._line(result.to_json())

    def _line(self, data: dict[str, Any]) -> None:
        if self._file:
            self._file.write(json.dumps(data) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        if self._file:
            self._file.close()


class Progress:
    """A progress bar on a terminal (rich, if it is installed); elsewhere a line every 30 seconds."""

    def __init__(self, suite: str, total: int, done: int) -> None:
        self._suite, self._total, self._done = suite, total, done
        self._samples = 0
        self._said = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        if sys.stdout.isatty():
            try:
                from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
                from rich.progress import Progress as Bar
            except ImportError:
                return self
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, TextColumn("{task.fields[samples]} samples"))
            self._bar.start()
            self._task = self._bar.add_task(self._suite, total=self._total, completed=self._done, samples=0)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar:
            self._bar.stop()

    def advance(self, samples: int) -> None:
        """One more entry is finished."""
        self._done += 1
        self._samples += samples
        if self._bar:
            self._bar.update(self._task, advance=1, samples=self._samples)

    def tick(self) -> None:
        """Called about once a second; prints a plain line now and then when there is no bar."""
        if not self._bar and time.monotonic() - self._said > 30:
            self._said = time.monotonic()
            print(f"{self._suite}: {self._done} of {self._total} entries, {self._samples} samples", flush=True)

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        if self._bar:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, flush=True)


def apply_expectation(result: EntryResult, rule: dict[str, Any] | None, strict: bool) -> EntryResult:
    """An entry that must differ is set aside if it does, and fails the run if it does not (`strict`: all was run)."""
    if rule is None:
        return result
    if result.status in (DIFFER, ERROR):
        result.expected = f"expected {result.status}: {rule['reason']}"
        result.status = SKIPPED
        wrong = result.stats.pop("wrong_device", 0)
        if wrong:
            result.stats["expected_wrong_device"] = wrong
    elif result.status == AGREE and strict:
        result.fail(-1, "expectation", f"agrees, but the expectation file says it must not: {rule['reason']}")
    return result
