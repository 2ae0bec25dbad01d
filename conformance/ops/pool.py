# SPDX-License-Identifier: Apache-2.0
"""Worker processes for entries: a crash or a hang costs one entry, not the run.

Workers are spawned, never forked: a device in use does not survive a fork. Each holds one end of a pipe and a small
shared buffer (the beacon) in which it says what it is about to do, so that the parent can name the place of a crash.
"""

from __future__ import annotations

import importlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from conformance.ops.result import EntryResult

_BEACON_SIZE = 160
_MAX_FAILED_STARTS = 3


class Suite(Protocol):
    """What a suite module offers: `make_suite(options: dict) -> Suite`, called in each worker."""

    def keys(self) -> list[str]:
        """Names of all entries, in a stable order."""

    def run(self, key: str, beacon: Callable[[str], None]) -> EntryResult:
        """Runs one entry."""


def _work(connection: Any, beacon: Any, module: str, options: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    import torch

    torch.set_num_threads(1)
    suite = importlib.import_module(module).make_suite(options)

    def tell(text: str) -> None:
        beacon.value = text.encode()[: _BEACON_SIZE - 1]

    while True:
        task = connection.recv()
        if task is None:
            return
        if task == ("keys",):
            connection.send(suite.keys())
            continue
        key = task[1]
        tell("starting")
        try:
            result = suite.run(key, tell)
            result.key = key
        except Exception as e:  # a fault of the suite itself must not look like agreement
            result = EntryResult(key=key)
            result.fail(-1, "suite", f"{type(e).__name__}: {e}", traceback.format_exc(), error=True)
        trouble = _device_trouble()
        if trouble:
            result.fail(-1, "device", f"the device no longer works: {trouble}", error=True)
        connection.send(result)
        if trouble:  # every later entry would fail on both sides; a fresh process starts with a working device
            tell("")
            connection.close()
            os._exit(1)


def _device_trouble() -> str:
    """What an accelerator reports when it is asked to finish its work, "" if all is well."""
    import torch

    try:
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
    except Exception as e:
        return f"{type(e).__name__}: {e}".splitlines()[0]
    return ""


@dataclass
class _Worker:
    process: Any
    connection: Any
    beacon: Any
    key: str | None = None
    deadline: float = 0.0
    served: int = 0


class Pool:
    """Runs the entries of one suite in `jobs` processes."""

    def __init__(self, module: str, options: dict[str, Any], jobs: int, deadline: float) -> None:
        self._module = module
        self._options = options
        self._limit = deadline
        self._context = multiprocessing.get_context("spawn")
        self._failed_starts = 0
        self._workers = [self._start() for _ in range(jobs)]

    def _start(self) -> _Worker:
        mine, theirs = self._context.Pipe()
        beacon = self._context.Array("c", _BEACON_SIZE, lock=False)
        arguments = (theirs, beacon, self._module, self._options)
        process = self._context.Process(target=_work, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, mine, beacon)

    def keys(self) -> list[str]:
        """Asks the first worker for all entries, so that the parent need not load the databases."""
        worker = self._workers[0]
        worker.connection.send(("keys",))
        try:
            return worker.connection.recv()
        except EOFError:
            worker.process.join()
            raise SystemExit(f"a worker process ended while starting ({_ending(worker.process.exitcode)})") from None

    def run(
        self, keys: list[str], done: Callable[[EntryResult], None], tick: Callable[[], None] = lambda: None
    ) -> None:
        """Runs the entries and calls `done` for each result, in the order in which they finish."""
        waiting = deque(keys)
        for worker in list(self._workers):
            self._next(worker, waiting)
        while any(w.key is not None for w in self._workers):
            busy = {w.connection: w for w in self._workers if w.key is not None}
            for connection in multiprocessing.connection.wait(list(busy), timeout=1.0):
                self._collect(busy[connection], waiting, done)
            now = time.monotonic()
            for worker in list(self._workers):
                if worker.key is not None and now > worker.deadline:
                    worker.process.kill()
                    worker.process.join()
                    self._lost(worker, waiting, done, f"no result after {self._limit:.0f} s")
            tick()

    def _collect(self, worker: _Worker, waiting: deque[str], done: Callable[[EntryResult], None]) -> None:
        try:
            result = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join()
            return self._lost(worker, waiting, done, _ending(worker.process.exitcode))
        worker.served += 1
        worker.key = None
        done(result)
        self._next(worker, waiting)

    def _next(self, worker: _Worker, waiting: deque[str]) -> None:
        if not waiting:
            return
        worker.key = waiting.popleft()
        worker.deadline = time.monotonic() + self._limit
        try:
            worker.connection.send(("run", worker.key))
        except BrokenPipeError:
            pass  # noticed as the end of its pipe

    def _lost(self, worker: _Worker, waiting: deque[str], done: Callable[[EntryResult], None], why: str) -> None:
        place = bytes(worker.beacon.value).decode(errors="replace")
        if not place:  # it never got to the entry: starting failed
            self._failed_starts += worker.served == 0
            if self._failed_starts >= _MAX_FAILED_STARTS:
                raise SystemExit(f"worker processes keep ending while starting ({why})")
            waiting.appendleft(worker.key or "")
        else:
            result = EntryResult(key=worker.key or "")
            result.fail(-1, "crash", f"the process ended ({why}) at: {place}", error=True)
            done(result)
        worker.connection.close()
        fresh = self._start()
        self._workers[self._workers.index(worker)] = fresh
        self._next(fresh, waiting)

    def close(self) -> None:
        """Ends the workers; those that are busy are killed."""
        for worker in self._workers:
            if worker.key is not None:
                worker.process.kill()
            else:
                try:
                    worker.connection.send(None)
                except (BrokenPipeError, OSError):
                    pass
        for worker in self._workers:
            worker.process.join(10)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.connection.close()


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"
