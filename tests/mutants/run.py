#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one bug at a time in a copy of the sources, builds it, and asks the tests that should notice to fail.

Every mutant of `mutants.toml` names a file, a piece of its text, what stands there instead, and the tests (with their
environments) that must pass on the sources as they are and fail with the bug. A piece of text that is not found exactly
once is an error: the list follows the sources. Nothing in the tree is touched; all work happens under build/mutants.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutants"
COPIED = (
    *("CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE"),
    *("cmake", "include", "src", "drivers", "bench", "conformance", "fuzz", "tests", "tools", "python"),
)
TEST_TIMEOUT_S = 180


@dataclass
class Test:
    """One way to notice a bug: a GoogleTest filter of `cpp` or `suite`, or a pytest node."""

    kind: str
    name: str
    env: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        settings = " ".join(f"{key.removeprefix('FLAGOS_')}={value}" for key, value in self.env.items())
        return f"{self.kind} {self.name}" + (f" [{settings}]" if settings else "")


@dataclass
class Mutant:
    """One planted bug."""

    id: str
    title: str
    file: str
    find: str
    replace: str
    tests: list[Test]

    @property
    def needs_torch(self) -> bool:
        """Whether a test runs Python, so that the torch layer has to be built."""
        return any(test.kind == "pytest" for test in self.tests)

    def check(self, root: Path) -> str | None:
        """Why the mutant does not fit the sources under `root`; None if it does."""
        count = (root / self.file).read_text().count(self.find) if (root / self.file).is_file() else -1
        return None if count == 1 else f"{self.id}: {self.file}: the text to replace occurs {max(count, 0)} times"


def load() -> list[Mutant]:
    """All mutants of mutants.toml."""
    listed = tomllib.loads((Path(__file__).parent / "mutants.toml").read_text())["mutant"]
    return [Mutant(**{**entry, "tests": [Test(**test) for test in entry["tests"]]}) for entry in listed]


class Sandbox:
    """A copy of the sources with a build folder of its own."""

    def __init__(self, with_torch: bool):
        self.source = WORK / "source"
        self.build_dir = WORK / ("build-torch" if with_torch else "build")
        self.with_torch = with_torch

    def refresh(self) -> None:
        """Makes the copy equal to the tree; unchanged files keep their time stamps and are not built again."""
        self.source.mkdir(parents=True, exist_ok=True)
        for name in COPIED:
            source, target = ROOT / name, self.source / name
            if source.is_dir():
                _sync(source, target)
            elif not target.is_file() or target.read_bytes() != source.read_bytes():
                shutil.copy2(source, target)

    def build(self) -> subprocess.CompletedProcess[str]:
        """Configures once and builds; the result's returncode says whether it compiled."""
        if not (self.build_dir / "build.ninja").is_file():
            configure = ["cmake", "-S", str(self.source), "-B", str(self.build_dir), "-G", "Ninja"]
            configure += [f"-DTORCH_FL_BUILD_TORCH={'ON' if self.with_torch else 'OFF'}", "-DTORCH_FL_BUILD_TESTS=ON"]
            configure += [f"-DPython_EXECUTABLE={sys.executable}"]
            subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
        return subprocess.run(["cmake", "--build", str(self.build_dir)], capture_output=True, text=True, check=False)

    def fails(self, test: Test) -> bool:
        """Runs one test: True when it fails, crashes or hangs."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FLAGOS_")}
        environment |= test.env | {"FLAGOS_DRIVER_PATH": str(self.build_dir / "torch_fl" / "lib" / "drivers")}
        if test.kind == "cpp":
            command = [str(self.build_dir / "tests/cpp/torch_fl_cpp_tests"), f"--gtest_filter={test.name}"]
        elif test.kind == "suite":
            program = self.build_dir / "torch_fl/bin/torch_fl_driver_suite"
            command = [str(program), "--driver", "host", f"--gtest_filter={test.name}"]
        else:
            environment["PYTHONPATH"] = str(self._package())
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "-m",
                "slow or not slow",
                "-x",
                test.name,
            ]
        try:
            done = subprocess.run(
                command,
                env=environment,
                cwd=self.source,
                capture_output=True,
                text=True,
                timeout=TEST_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return True
        ran_nothing = "0 tests ran" in done.stdout or "no tests ran" in done.stdout
        if ran_nothing:
            raise SystemExit(f"{test}: no such test\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.returncode != 0

    def _package(self) -> Path:
        """A folder to put on PYTHONPATH: the copy's Python files and this build's libraries."""
        package = WORK / "package" / "torch_fl"
        package.mkdir(parents=True, exist_ok=True)
        wanted = list((self.source / "python" / "torch_fl").iterdir())
        wanted += [self.build_dir / "torch_fl" / "lib", *(self.build_dir / "torch_fl").glob("_C*.so")]
        for path in wanted:
            link = package / path.name
            if not link.is_symlink():
                link.symlink_to(path)
        return package.parent


def _sync(source: Path, target: Path) -> None:
    wanted = {
        path.relative_to(source) for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    for path in wanted:
        new, old = source / path, target / path
        if not old.is_file() or old.read_bytes() != new.read_bytes():
            old.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(new, old)
    for path in [path for path in target.rglob("*") if path.is_file()]:
        if path.relative_to(target) not in wanted and "__pycache__" not in path.parts:
            path.unlink()


def run(mutants: list[Mutant], with_torch: bool) -> list[dict[str, object]]:
    """Runs the mutants of one kind of build; a row for each: what each test said with the bug."""
    sandbox = Sandbox(with_torch)
    sandbox.refresh()
    built = sandbox.build()
    if built.returncode != 0:
        raise SystemExit(f"the sources as they are do not build:\n{built.stdout[-4000:]}")
    for test in {str(test): test for mutant in mutants for test in mutant.tests}.values():
        if sandbox.fails(test):
            raise SystemExit(f"{test} fails without a bug; it proves nothing")
    rows: list[dict[str, object]] = []
    for mutant in mutants:
        target = sandbox.source / mutant.file
        original = target.read_text()
        target.write_text(original.replace(mutant.find, mutant.replace))
        try:
            built = sandbox.build()
            if built.returncode != 0:
                raise SystemExit(f"{mutant.id} does not compile:\n{built.stdout[-4000:]}")
            noticed = {str(test): sandbox.fails(test) for test in mutant.tests}
        finally:
            target.write_text(original)
        rows.append({"id": mutant.id, "title": mutant.title, "file": mutant.file, "noticed": noticed})
        for test, seen in noticed.items():
            print(f"{'noticed' if seen else 'MISSED ':8} {mutant.id:28} {test}", flush=True)
    return rows


def main() -> int:
    """Command line; 0 when every test noticed its bug."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ids", nargs="*", help="mutants to run; all by default")
    parser.add_argument("--check", action="store_true", help="only check that every mutant fits the sources")
    parser.add_argument("--json", type=Path, help="write a run record here")
    options = parser.parse_args()
    mutants = load()
    unknown = set(options.ids) - {mutant.id for mutant in mutants}
    if unknown:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}; known: {', '.join(m.id for m in mutants)}")
    problems = [problem for mutant in mutants if (problem := mutant.check(ROOT))]
    print(*problems, sep="\n", file=sys.stderr, end="\n" if problems else "")
    if problems or options.check:
        return 1 if problems else 0
    chosen = [mutant for mutant in mutants if not options.ids or mutant.id in options.ids]
    started = time.time()
    rows: list[dict[str, object]] = []
    for with_torch in (False, True):
        some = [mutant for mutant in chosen if mutant.needs_torch == with_torch]
        if some:
            rows += run(some, with_torch)
    if options.json:
        record = {
            "command": "tests/mutants/run.py",
            "machine": {"processor": platform.machine(), "cpus": os.cpu_count(), "python": platform.python_version()},
            "seconds": round(time.time() - started, 1),
            "mutants": rows,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    missed = [row for row in rows if not all(row["noticed"].values())]  # type: ignore[attr-defined]
    print(f"{len(rows)} planted, {len(rows) - len(missed)} noticed by every test named for them")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
