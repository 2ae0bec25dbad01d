# SPDX-License-Identifier: Apache-2.0
"""What ran where: counters per operator and route, and the table of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import IO, Literal, TypedDict

from torch_fl import _C
from torch_fl._text import size_text
from torch_fl.flagos.memory import memory_stats

FALLBACK_ROUTE = "cpu"


class CounterRow(TypedDict):
    """One operator on one route since the start or `reset_counters`."""

    op: str  # "aten::add.Tensor"
    route: str  # "alias", "cpu", "native"
    calls: int
    host_ns: int  # host time of the calls made inside `timing()`
    copied_bytes: int  # moved by a copying fallback, or by results that could not be adopted
    copied_results: int  # results that had to be copied into device memory


def counters() -> list[CounterRow]:
    """The counted operators, most calls first. Rows without a call are left out."""
    rows = [
        CounterRow(
            op=op, route=route, calls=calls, host_ns=host_ns, copied_bytes=copied_bytes, copied_results=copied_results
        )
        for op, route, calls, host_ns, copied_bytes, copied_results in _C._counter_rows()
    ]
    return sorted(rows, key=lambda row: (-row["calls"], row["op"], row["route"]))


def reset_counters() -> None:
    """Starts all counters of operators, copies and waits again from 0. Memory numbers stay as they are."""
    _C._reset_counters()


@contextlib.contextmanager
def timing() -> Iterator[None]:
    """Measures the host time of every routed call inside the block, in all threads.

    Off otherwise, because two clock reads cost as much as routing a small operator. Not to be nested.
    """
    _C._set_timing(True)
    try:
        yield
    finally:
        _C._set_timing(False)


def summary(
    file: IO[str] | None = None,
    by: Literal["calls", "time"] = "calls",
    limit: int | None = 30,
    width: int | None = None,
) -> None:
    """Prints operators x routes with calls and host time, then fallbacks, copies, allocations and peak memory.

    Args:
        file: where to print, stdout for None. A terminal is not needed.
        by: order of the rows, by number of calls or by host time (which only `timing()` measures).
        limit: most rows to print, all for None. The totals count every row.
        width: characters a line, for None those of the terminal or 120 where there is none.

    Raises:
        ValueError: `by` is another word.
    """
    if by not in ("calls", "time"):
        raise ValueError(f"summary: by is {by!r}, known are 'calls', 'time'")
    from rich.console import Console
    from rich.table import Table

    rows = counters()
    if by == "time":
        rows.sort(key=lambda row: -row["host_ns"])
    shown = rows if limit is None else rows[:limit]

    console = Console(file=file, width=width, highlight=False)
    if width is None and not console.is_terminal:
        console.width = 120
    table = Table(title="flagos: operators by route")
    table.add_column("operator", no_wrap=True)
    table.add_column("route")
    for title in ("calls", "host ms", "us a call", "copied"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in shown:
        table.add_row(
            row["op"],
            f"[bold]{row['route']}[/bold]" if row["route"] == FALLBACK_ROUTE else row["route"],
            f"{row['calls']:,}",
            f"{row['host_ns'] / 1e6:,.2f}" if row["host_ns"] else "-",
            f"{row['host_ns'] / row['calls'] / 1e3:,.2f}" if row["host_ns"] else "-",
            f"{row['copied_bytes']:,} B" if row["copied_bytes"] else "-",
        )
    console.print(table)
    if len(shown) < len(rows):
        console.print(f"... and {len(rows) - len(shown)} more rows (limit={limit})")
    for line in totals(rows):
        console.print(line, markup=False)


def totals(rows: list[CounterRow]) -> list[str]:
    """The lines below the table: calls, fallbacks, copies, waits, and memory of every device in use."""
    fallbacks = [row for row in rows if row["route"] == FALLBACK_ROUTE]
    runtime = _C._runtime_counters()
    lines = [
        f"calls: {sum(row['calls'] for row in rows):,} of {len({row['op'] for row in rows}):,} operators",
        f"CPU fallbacks: {sum(row['calls'] for row in fallbacks):,} calls of {len(fallbacks):,} operators, "
        f"{size_text(sum(row['copied_bytes'] for row in fallbacks))} copied",
        f"results copied into device memory: {sum(row['copied_results'] for row in rows):,}",
        "copies: "
        + ", ".join(
            f"{title} {runtime[f'copies_{key}']:,} ({size_text(runtime[f'bytes_{key}'])})"
            for key, title in (("h2d", "to the device"), ("d2h", "to the host"), ("d2d", "on devices"))
        ),
        f"host waits: device {runtime['device_syncs']:,}, stream {runtime['stream_syncs']:,}, "
        f"event {runtime['event_syncs']:,}",
    ]
    for index in range(_C._device_count()):
        if _C._has_context(index):
            stats = memory_stats(index)
            lines.append(
                f"flagos:{index}: peak memory {size_text(stats['peak_allocated_bytes'])} allocated, "
                f"{size_text(stats['peak_reserved_bytes'])} reserved; {stats['num_alloc_calls']:,} allocations, "
                f"{stats['num_device_malloc']:,} of them from the driver"
            )
    return lines
