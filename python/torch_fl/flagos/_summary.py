# SPDX-License-Identifier: Apache-2.0
"""The table of `torch.flagos.memory_summary`: rows, columns and units as users of torch's GPU module know them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

_WIDTH = 75
_METRICS = (("current", "Cur Usage"), ("peak", "Peak Usage"), ("allocated", "Tot Alloc"), ("freed", "Tot Freed"))
_UNITS = ("B  ", "KiB", "MiB", "GiB", "TiB", "PiB")

# (key of memory_stats, title, whether its values are bytes)
_ROWS = (
    ("allocated_bytes", "Allocated memory", True),
    ("active_bytes", "Active memory", True),
    ("requested_bytes", "Requested memory", True),
    ("reserved_bytes", "GPU reserved memory", True),
    ("inactive_split_bytes", "Non-releasable memory", True),
    ("allocation", "Allocations", False),
    ("active", "Active allocs", False),
    ("segment", "GPU reserved segments", False),
    ("inactive_split", "Non-releasable allocs", False),
)
_POOLS = (("large_pool", "      from large pool"), ("small_pool", "      from small pool"))
_LAST_ROWS = (("oversize_allocations", "Oversize allocations"), ("oversize_segments", "Oversize GPU segments"))


def summary_text(stats: Mapping[str, int], device: int, abbreviated: bool) -> str:
    """The table.

    Args:
        stats: what `memory_stats` gave; a missing number counts as 0.
        device: index for the title.
        abbreviated: leaves out the rows of the small and the large pool.
    """
    lines = ["=" * _WIDTH, f"PyTorch flagos memory summary, device ID {device}".center(_WIDTH), "-" * _WIDTH]
    ooms = f"flagos OOMs: {stats.get('num_ooms', 0)}".center(_WIDTH // 2)
    retries = f"allocation retries: {stats.get('num_alloc_retries', 0)}".center(_WIDTH - _WIDTH // 2 - 1)
    lines += [f"{ooms}|{retries}", "=" * _WIDTH]
    lines.append(" " + "Metric".center(21) + " | " + " | ".join(title.ljust(10) for _, title in _METRICS) + " ")
    for key, title, is_bytes in _ROWS:
        lines.append("-" * _WIDTH)
        pools = (("all", title),) if abbreviated else (("all", title), *_POOLS)
        # All rows of a block use the unit that suits the first, so that the columns can be compared.
        forms = [_form(stats.get(f"{key}.all.{metric}", 0), is_bytes) for metric, _ in _METRICS]
        for pool, name in pools:
            values = [stats.get(f"{key}.{pool}.{metric}", 0) for metric, _ in _METRICS]
            lines.append(_row(name, values, forms))
    for key, title in _LAST_ROWS:
        lines.append("-" * _WIDTH)
        values = [stats.get(f"{key}.{metric}", 0) for metric, _ in _METRICS]
        lines.append(_row(title, values, [_form(value, False) for value in values]))
    lines.append("=" * _WIDTH)
    return "".join(f"|{line}|\n" for line in lines)


def _row(title: str, values: list[int], forms: list[Callable[[int], str]]) -> str:
    cells = " | ".join(form(value) for form, value in zip(forms, values, strict=True))
    return f" {title:<21} | {cells} "


def _form(largest: int, is_bytes: bool) -> Callable[[int], str]:
    """How the numbers of a column are written, given the one that decides the unit."""
    if is_bytes:
        power = 0
        while largest >= 768 * 1024 and power < len(_UNITS) - 1:
            largest //= 1024
            power += 1
        return lambda value: f"{value // 1024**power:6d} {_UNITS[power]}"
    power = 0
    while largest >= 750 * 1000 and power < 2:
        largest //= 1000
        power += 1
    return lambda value: f"{value // 1000**power:7d} {' KM'[power]} "
