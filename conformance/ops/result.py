# SPDX-License-Identifier: Apache-2.0
"""What one entry and one whole run found; plain data that travels between processes and into JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

AGREE, DIFFER, ERROR, SKIPPED = "agree", "differ", "error", "skipped"
_KEPT_FAILURES = 20


@dataclass
class Failure:
    """One failed check: the sample's index (-1: none), the kind of check, the first line, and the details."""

    sample: int
    kind: str
    line: str
    detail: str = ""
    error: bool = False


@dataclass
class EntryResult:
    """The outcome of one entry.

    `samples` counts compared samples, `checks` what was compared per kind, `stats` the rest: skipped samples,
    no_raise, zero_size, close_only, wrong_device, errors_checked. `seconds` is processor time.
    """

    key: str
    status: str = AGREE
    reason: str = ""
    samples: int = 0
    checks: dict[str, int] = field(default_factory=dict)
    stats: dict[str, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    failed_checks: int = 0
    expected: str = ""
    seconds: float = 0.0

    def add_check(self, kind: str) -> None:
        """Counts one comparison of this kind."""
        self.checks[kind] = self.checks.get(kind, 0) + 1

    def add_stat(self, name: str, n: int = 1) -> None:
        """Counts a statistic."""
        self.stats[name] = self.stats.get(name, 0) + n

    def fail(self, sample: int, kind: str, line: str, detail: str = "", error: bool = False) -> None:
        """Records a failed check; an error outweighs a difference."""
        self.failed_checks += 1
        if len(self.failures) < _KEPT_FAILURES:
            self.failures.append(Failure(sample, kind, " ".join(line.split())[:300], detail, error))
        if error or self.status == ERROR:
            self.status = ERROR
        else:
            self.status = DIFFER

    def finish(self) -> None:
        """An entry of which nothing could be compared must not count as agreement."""
        if self.status == AGREE and self.samples == 0 and not sum(self.checks.values()):
            self.status = SKIPPED
            self.reason = self.reason or "nothing to compare: no samples, or the reference raised for each"

    def to_json(self) -> dict[str, Any]:
        """A JSON object without empty fields."""
        return {k: v for k, v in asdict(self).items() if v or k == "status"}

    @staticmethod
    def from_json(data: dict[str, Any]) -> EntryResult:
        """The inverse of to_json."""
        made = EntryResult(**{k: v for k, v in data.items() if k != "failures"})
        made.failures = [Failure(**f) for f in data.get("failures", [])]
        return made


@dataclass
class Totals:
    """Sums over a run."""

    entries: int = 0
    samples: int = 0
    by_status: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    stats: Counter[str] = field(default_factory=Counter)
    expected: int = 0
    cpu_seconds: float = 0.0

    @staticmethod
    def of(results: Iterable[EntryResult]) -> Totals:
        """Adds up the results."""
        totals = Totals()
        for r in results:
            totals.entries += 1
            totals.samples += r.samples
            totals.by_status[r.status] += 1
            totals.checks.update(r.checks)
            totals.stats.update(r.stats)
            totals.expected += bool(r.expected)
            totals.cpu_seconds += r.seconds
        return totals

    def lines(self, suite: str) -> list[str]:
        """The closing report; its last two lines are the ones that other tools read."""
        stats = self.stats
        checks = ", ".join(f"{k} {n}" for k, n in sorted(self.checks.items())) or "none"
        return [
            f"checks: {checks}",
            f"sizes: {stats['zero_size']} samples with a zero-size tensor",
            f"bits: {stats['close_only']} comparisons within tolerance only, the others equal",
            f"skipped samples: {stats['reference_raised']} (the reference raised); "
            f"no_raise: {stats['no_raise']} calls that only the reference refused",
            f"unsteady: {stats['reference_unsteady']} gradients that the reference did not repeat, compared with slack",
            f"expected differences: {self.expected} entries",
            f"errors: {stats['errors_checked']} checked",
            f"devices: {stats['wrong_device']} results on a wrong device",
            f"samples: {self.samples} compared",
            f"{suite}: {self.entries} entries, {self.by_status[AGREE]} agree, {self.by_status[DIFFER]} differ, "
            f"{self.by_status[ERROR]} error, {self.by_status[SKIPPED]} skipped",
        ]

    def good(self) -> bool:
        """True if nothing differed or failed, nothing lay on a wrong device, and something was compared at all."""
        bad = self.by_status[DIFFER] + self.by_status[ERROR] + self.stats["wrong_device"]
        return bad == 0 and self.by_status[AGREE] > 0
