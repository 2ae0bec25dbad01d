# SPDX-License-Identifier: Apache-2.0
"""Proves a driver: runs torch_fl_driver_suite in child processes and holds its results against an expectation file.

The expectation file is `expectations/driver/<name>.toml`. It may be empty. Its tables:
  [environment]         NAME = "value"                       defaults of variables, for what the caller did not set
  [[unsupported]]       test, reason, date (, when)          the test must skip with "unsupported: ..."
  [[expected_failure]]  test, reason, date (, when)          the test must fail, crash or hang
`test` is a glob over "Area.Test", or a list of globs. `when` is a table of variables, each with a regular expression
that its whole value (the empty string when it is unset) must match for the rule to hold. The first rule that holds
counts. The file is strict: a skip or failure that it does not list fails the run, and so does a listed test that
passes, or a glob that no test meets.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from conformance.ops.run import machine, versions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXPECTATIONS = Path(__file__).resolve().parent / "expectations" / "driver"
PROGRAM = "torch_fl_driver_suite"
VERDICTS = ("passed", "unsupported", "expected failure", "wrong")
HUNG = 97  # exit status of the program's watchdog

# What the runtime does without an entry; docs/drivers.md has the long form.
WITHOUT = {
    "at_exit": "nothing is called at process exit",
    "versions": "the vendor's versions are unknown",
    "device_memory": "total from device_info, less what the pool holds",
    "memory_alignment": "64 bytes are assumed",
    "host_view_offset": "operators do not run in place; they are copied to the host and back",
    "host_alloc": "pageable memory is used, and copies from it are staged",
    "host_free": "as host_alloc",
    "host_register": "memory of others stays pageable",
    "host_unregister": "as host_register",
    "pointer_info": "the runtime keeps its own table of addresses",
    "access_fault_take": "host accesses to device memory are not reported",
    "stream_priority_range": "all streams have priority 0",
    "stream_native": "the handle itself is handed to other libraries",
    "stream_wrap": "external streams are refused",
    "stream_host_func": "the stream is waited for, then the function runs on the caller's thread",
    "event_elapsed": "the host clock at the time of recording",
    "peer_can_access": "copies between devices are staged through the host",
    "peer_enable": "as peer_can_access",
    "kernel_begin": "a kernel that the host runs is complete when it returns",
    "kernel_end": "as kernel_begin",
    "memory_granularity": "the pool uses blocks of memory_alloc and cannot expand segments",
    "memory_reserve": "as memory_granularity",
    "memory_release": "as memory_granularity",
    "memory_map": "as memory_granularity",
    "memory_unmap": "as memory_granularity",
}


@dataclass
class Rule:
    """One entry of an expectation file that holds in this environment."""

    kind: str  # "unsupported" or "expected_failure"
    test: str
    reason: str
    date: str
    met: bool = False


class Expectations:
    """One expectation file. Raises ValueError for what it cannot understand."""

    def __init__(self, data: Mapping[str, Any], environment: Mapping[str, str], name: str = "expectations") -> None:
        unknown = set(data) - {"environment", "unsupported", "expected_failure"}
        if unknown:
            raise ValueError(f"{name}: unknown tables: {', '.join(sorted(unknown))}")
        self.environment: dict[str, str] = {**data.get("environment", {}), **environment}
        self.rules: list[Rule] = []
        for kind in ("unsupported", "expected_failure"):
            for entry in data.get(kind, []):
                wrong = set(entry) - {"test", "reason", "date", "when"}
                if wrong or not all(str(entry.get(key, "")) for key in ("test", "reason", "date")):
                    raise ValueError(
                        f"{name}: [[{kind}]] {entry} needs test, reason and date; unknown: {sorted(wrong)}"
                    )
                if all(self._holds(key, pattern) for key, pattern in entry.get("when", {}).items()):
                    globs = [entry["test"]] if isinstance(entry["test"], str) else entry["test"]
                    self.rules += [Rule(kind, glob, entry["reason"], str(entry["date"])) for glob in globs]

    @staticmethod
    def load(driver: str, environment: Mapping[str, str]) -> Expectations:
        """Reads expectations/driver/<driver>.toml; a driver without a file has no exceptions."""
        path = EXPECTATIONS / f"{driver}.toml"
        data = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return Expectations(data, environment, path.name)

    def _holds(self, variable: str, pattern: str) -> bool:
        return re.fullmatch(pattern, self.environment.get(variable, "")) is not None

    def find(self, test: str) -> Rule | None:
        """The first rule for the test; it counts as met."""
        for rule in self.rules:
            if fnmatch.fnmatchcase(test, rule.test):
                rule.met = True
                return rule
        return None


@dataclass
class Result:
    """What one test did ("passed", "skipped", "failed", "crashed", "hung"), and what the expectations make of it."""

    test: str
    status: str
    text: str = ""
    verdict: str = ""  # "passed", "unsupported", "expected failure", "wrong"
    why: str = ""

    @property
    def area(self) -> str:
        """ "Kinds/Copies.EverySize/0" belongs to "Copies"."""
        return self.test.split(".")[0].split("/")[-1]


def judge(result: Result, rule: Rule | None) -> Result:
    """Sets the verdict."""
    wanted = rule.kind if rule else "passed"
    result.verdict = "wrong"
    if result.status == "passed":
        if rule is None:
            result.verdict = "passed"
        else:
            result.why = f"passes, but is listed as {rule.kind} ({rule.date}): {rule.reason}"
    elif result.status == "skipped":
        if not result.text.startswith("unsupported: "):
            result.why = f"skips without saying what is unsupported: {result.text}"
        elif wanted == "unsupported":
            result.verdict, result.why = "unsupported", rule.reason if rule else ""
        else:
            result.why = f"skips, which the expectation file does not list: {result.text}"
    elif wanted == "expected_failure":
        result.verdict, result.why = "expected failure", rule.reason if rule else ""
    else:
        result.why = f"{result.status}: {result.text}"
    return result


@dataclass
class Run:
    """The program under one environment."""

    program: Path
    driver: str
    environment: dict[str, str]
    timeout: int = 60
    results: list[Result] = field(default_factory=list)

    def _call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.program), "--driver", self.driver, *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )

    def describe(self) -> dict[str, Any]:
        """What the driver is. Raises RuntimeError with the loader's words when it cannot be loaded."""
        done = self._call("--describe")
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip() or f"{PROGRAM} --describe ended with {done.returncode}")
        return json.loads(done.stdout)

    def tests(self, pattern: str) -> list[str]:
        """Names of the tests that a filter of GoogleTest's kind selects."""
        done = self._call("--gtest_list_tests", f"--gtest_filter={pattern}")
        if done.returncode != 0:
            raise RuntimeError(f"{PROGRAM} --gtest_list_tests ended with {done.returncode}: {done.stderr.strip()}")
        names, area = [], ""
        for line in done.stdout.splitlines():
            word = line.split("#")[0].strip()
            if line.startswith("  "):
                names.append(area + word)
            elif word.endswith("."):
                area = word
        return names

    def run(self, tests: Sequence[str]) -> None:
        """Runs them in one process, and what a crash or a hang left over in the next."""
        left = list(tests)
        while left:
            done, died = self._run_once(left)
            finished = {result.test for result in done}
            self.results += done
            if died is not None:
                self.results.append(died)
                finished.add(died.test)
            if not finished.intersection(left):
                raise RuntimeError(f"{PROGRAM} ran none of {len(left)} tests")
            left = [test for test in left if test not in finished]

    def _run_once(self, tests: Sequence[str]) -> tuple[list[Result], Result | None]:
        with tempfile.TemporaryDirectory() as folder:
            record = Path(folder, "results.jsonl")
            done = self._call(
                "--results", str(record), "--timeout", str(self.timeout), "--gtest_filter=" + ":".join(tests)
            )
            lines = record.read_text(encoding="utf-8", errors="replace").splitlines() if record.exists() else []
        results, running = [], ""
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                break  # the process died inside this line
            if entry["status"] == "started":
                running = entry["test"]
            else:
                running = ""
                results.append(Result(entry["test"], entry["status"], entry["text"]))
        tail = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-30:])
        if running:
            hung = done.returncode == HUNG
            text = f"no end within {self.timeout} s" if hung else f"exit status {done.returncode}\n{tail}"
            return results, Result(running, "hung" if hung else "crashed", text)
        failed = any(result.status == "failed" for result in results)
        if done.returncode != (1 if failed else 0):
            # All tests ended and the process did not: a crash at exit, or a sanitizer's report.
            status = "hung" if done.returncode == HUNG else "crashed"
            return results, Result("Process.End", status, f"exit status {done.returncode}\n{tail}")
        return results, None


def find_program() -> Path:
    """The newest build of the suite in this source tree, sanitizers aside. Raises RuntimeError when there is none."""
    root = Path(__file__).resolve().parent.parent
    found = [path for path in root.glob(f"build/**/torch_fl/bin/{PROGRAM}") if not {"asan", "tsan"} & set(path.parts)]
    found.sort(key=lambda path: path.stat().st_mtime)
    if not found:
        raise RuntimeError(f"{PROGRAM} is not built; build with -DTORCH_FL_BUILD_TESTS=ON, or give --program PATH")
    return found[-1]


def driver_name(driver: str) -> str:
    """What the expectation file of a name or path is called."""
    file = Path(driver).name
    match = re.fullmatch(r"libtorch_fl_driver_(.+)\.so", file)
    return match[1] if match else Path(file).stem


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table: rich where it is installed, plain columns elsewhere."""
    rows = [list(map(str, row)) for row in rows]
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(title)
        for row in [list(columns), *rows]:
            print("  " + "  ".join(cell.ljust(24) for cell in row).rstrip())
        return
    made = Table(title=title, title_justify="left")
    for column in columns:
        made.add_column(column, justify="right" if column in VERDICTS else "left")
    for row in rows:
        made.add_row(*row)
    Console().print(made)


def report(facts: dict[str, Any], results: list[Result], stale: list[Rule], verbose: bool) -> dict[str, dict[str, int]]:
    """Prints everything; returns the counts by area."""
    missing = facts["missing_entries"]
    if missing:
        rows = [(entry, WITHOUT.get(entry, "see driver.h")) for entry in missing]
        table(f"{facts['name']}: {len(missing)} optional entries are missing", ("Entry", "What the runtime does"), rows)
    areas: dict[str, dict[str, int]] = {}
    for result in results:
        counts = areas.setdefault(result.area, dict.fromkeys(VERDICTS, 0))
        counts[result.verdict] += 1
    rows = [(area, *(str(counts[kind] or "") for kind in VERDICTS)) for area, counts in sorted(areas.items())]
    devices = f"{len(facts['devices'])} device" + ("" if len(facts["devices"]) == 1 else "s")
    layers = f", layers {','.join(facts['layers'])}" if facts["layers"] else ""
    table(f"{facts['name']} ({facts['implementation']}), {devices}{layers}", ("Area", *VERDICTS), rows)
    for result in results:
        if result.verdict == "wrong":
            print(f"WRONG {result.test}: {result.why}")
        elif verbose and result.verdict != "passed":
            print(f"{result.verdict} {result.test}: {result.why}")
    for rule in stale:
        print(f"WRONG expectation [[{rule.kind}]] {rule.test}: no such test")
    return areas


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options."""
    p = argparse.ArgumentParser(
        prog="torch-fl conformance driver", description=(__doc__ or "").split("\n", 1)[0], allow_abbrev=False
    )
    p.add_argument("--driver", required=True, metavar="NAME|PATH", help="a driver's name, or the path of its library")
    p.add_argument("--filter", default="*", metavar="G", help="a filter of GoogleTest's kind, as in Copies.*:-*.Large*")
    p.add_argument("--layers", default=None, metavar="L,...", help="FLAGOS_DRIVER_LAYERS for the run")
    p.add_argument("--timeout", type=int, default=60, metavar="S", help="seconds after which a test counts as hung")
    p.add_argument("--json", type=Path, metavar="OUT", help="write a run record")
    p.add_argument("--program", type=Path, metavar="PATH", help=f"the {PROGRAM} to run (default: the newest build)")
    p.add_argument("--verbose", action="store_true", help="also list what is unsupported or expected to fail")
    p.add_argument("--list", action="store_true", help="print the tests and stop")
    return p.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the suite; 0 only if every test did what is expected of it and at least one passed."""
    args = parse(sys.argv[1:] if argv is None else argv)
    variables = {k: v for k, v in os.environ.items() if k.startswith("FLAGOS_")}
    if args.layers is not None:
        variables["FLAGOS_DRIVER_LAYERS"] = args.layers
    name = driver_name(args.driver)
    try:
        expectations = Expectations.load(name, variables)
        driver = os.path.abspath(args.driver) if "/" in args.driver else args.driver
        run = Run(args.program or find_program(), driver, expectations.environment, args.timeout)
        tests = run.tests(args.filter)
        if args.list:
            print("\n".join(tests))
            return 0
        started = time.monotonic()
        facts = run.describe()
        run.run(tests)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"driver suite: {error}", file=sys.stderr)
        return 2
    results = [judge(result, expectations.find(result.test)) for result in run.results]
    stale = [rule for rule in expectations.rules if not rule.met] if args.filter == "*" else []
    areas = report(facts, results, stale, args.verbose)
    count = {kind: sum(area[kind] for area in areas.values()) for kind in VERDICTS}
    good = count["wrong"] == 0 and not stale and count["passed"] > 0
    seconds = time.monotonic() - started
    if args.json:
        write_record(args, facts, results, areas, count, expectations.environment, seconds, good)
    print(
        f"driver {facts['name']}: {len(results)} tests, {count['passed']} passed, {count['unsupported']} unsupported, "
        f"{count['expected failure']} expected failures, {count['wrong'] + len(stale)} wrong; {seconds:.0f} s"
    )
    return 0 if good else 1


def write_record(
    args: argparse.Namespace,
    facts: dict[str, Any],
    results: list[Result],
    areas: dict[str, dict[str, int]],
    count: dict[str, int],
    environment: Mapping[str, str],
    seconds: float,
    good: bool,
) -> None:
    """Writes the run record: what ran, where, and every test that did not simply pass."""
    kept = {k: v for k, v in sorted(environment.items()) if "/" not in v}
    record = {
        "suite": "driver",
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "environment": kept,
        "options": {"driver": facts["name"], "filter": args.filter, "layers": facts["layers"]},
        "driver": {k: v for k, v in facts.items() if k != "missing_entries"},
        "missing_entries": {entry: WITHOUT.get(entry, "") for entry in facts["missing_entries"]},
        "seconds": round(seconds, 1),
        "good": good,
        "tests": {"all": len(results), **{k.replace(" ", "_"): v for k, v in count.items()}},
        "areas": {area: {k.replace(" ", "_"): v for k, v in sums.items() if v} for area, sums in sorted(areas.items())},
        "not_passed": [
            {"test": r.test, "verdict": r.verdict, "text": r.text.splitlines()[0] if r.text else "", "reason": r.why}
            for r in results
            if r.verdict != "passed"
        ],
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
