# SPDX-License-Identifier: Apache-2.0
"""How the demo shows its result: tables on the terminal and a plot of the loss curves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from demo import Pair, Usage

SHOWN_OPERATORS = 20


def operator_table(usage: Usage) -> Table:
    """The operators that took most host time, and one line for all others."""
    table = Table(title="operators, by host time", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("operator", overflow="fold")
    table.add_column("route", no_wrap=True)
    for heading in ("calls", "host ms", "bytes copied"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = sorted(usage.rows, key=lambda row: (-row["host_ns"], -row["calls"], row["op"]))
    for row in rows[:SHOWN_OPERATORS]:
        style = "red" if row["route"] == "cpu" else None
        table.add_row(row["op"].removeprefix("aten::"), row["route"], *_figures([row]), style=style)
    rest = rows[SHOWN_OPERATORS:]
    if rest:
        routes = ", ".join(sorted({row["route"] for row in rest}))
        table.add_row(f"{len(rest)} others", routes, *_figures(rest), style="dim")
    return table


def _figures(rows: list[dict[str, Any]]) -> tuple[str, str, str]:
    """Calls, host milliseconds and copied bytes of all ``rows`` together."""
    calls, host_ns, copied = (sum(row[key] for row in rows) for key in ("calls", "host_ns", "copied_bytes"))
    return f"{calls:,}", f"{host_ns / 1e6:,.1f}", f"{copied:,}"


def model_table(pairs: list[Pair]) -> Table:
    """Both models: first and last loss, test accuracy, time, and the largest relative deviation of the two curves."""
    title = "models: first and last loss, and the largest deviation of the two loss curves"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("model", "device"):
        table.add_column(heading, no_wrap=True)
    for heading in ("steps", "first", "last", "accuracy", "sec", "deviation"):
        table.add_column(heading, justify="right", no_wrap=True)
    for pair in pairs:
        apart = deviation(pair)
        for run in (pair.device, pair.cpu):
            table.add_row(
                pair.name,
                run.device,
                str(len(run.losses)),
                f"{run.losses[0]:.4f}",
                f"{run.losses[-1]:.4f}",
                "" if run.accuracy is None else f"{run.accuracy:.2%}",
                f"{run.seconds:.1f}",
                apart if run is pair.device else "",
            )
        table.add_section()
    return table


def deviation(pair: Pair) -> str:
    """The largest deviation of the two loss curves in words that fit a table."""
    return "bit-equal" if pair.bit_equal else f"{pair.largest_relative_difference:.1e} rel"


def print_report(console: Console, pairs: list[Pair], usage: Usage, seconds: float, curves: Path) -> None:
    """Prints all that the demo found."""
    if usage.rows:
        console.print(operator_table(usage))
    console.print(model_table(pairs))
    for pair in pairs:
        if pair.device.sample:
            # Text, not str: what a model writes must not be read as console markup.
            console.print(Panel(Text(pair.device.sample), title=f"the {pair.name} on {pair.device.device} writes"))
    style = "green" if usage.fallbacks == 0 else "red"
    console.print(f"CPU fallbacks by copy: [{style}]{usage.fallbacks}[/{style}]")
    console.print(f"bytes copied by routing: {usage.copied_bytes:,}")
    console.print(f"peak device memory: {usage.peak_bytes / 2**20:.1f} MiB")
    console.print(f"loss curves: {curves}")
    console.print(f"total time: {seconds:.0f} s")


def save_curves(pairs: list[Pair], path: Path) -> None:
    """Draws one plot per model, the device's curve dashed over the CPU's, and writes them to ``path`` as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, plots = pyplot.subplots(1, len(pairs), figsize=(6 * len(pairs), 4.5), layout="constrained")
    for plot, pair in zip(plots, pairs, strict=True):
        plot.plot(pair.cpu.losses, color="#f2a65a", linewidth=3.5, label=pair.cpu.device)
        plot.plot(pair.device.losses, color="#1f3b73", linewidth=1.2, linestyle=(0, (4, 3)), label=pair.device.device)
        plot.set_title(f"{pair.name}: {pair.device.device} against {pair.cpu.device}, {deviation(pair)}")
        plot.set_xlabel("training step")
        plot.set_ylabel("cross entropy (nats)")
        plot.set_ylim(bottom=0)
        plot.grid(alpha=0.3)
        plot.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
