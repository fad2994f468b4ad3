"""`quantdrift allocate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quantdrift.allocation.held_out import Contest, Rival
from quantdrift.allocation.job import Allocated, allocate_spec
from quantdrift.allocation.record import AllocatedLayer, Allocation
from quantdrift.cli import Interrupted
from quantdrift.cli.tables import console
from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.errors import QuantDriftError
from quantdrift.measurement.embeddings import EmbeddingStore, default_store
from quantdrift.measurement.steps import Settings
from quantdrift.progress import Silent, Terminal
from quantdrift.spec import parse

__all__ = ["AllocateOptions", "allocate_command"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateOptions:
    """The options of `quantdrift allocate`, as typed by the user."""

    spec: str
    dataset: RetrievalDataset
    shown_data: str
    out: Path
    keep: Sequence[str]
    check: bool
    batch_size: int
    device: str | None
    revision: str | None
    cache: bool
    json_output: bool
    quiet: bool


def allocate_command(options: AllocateOptions) -> None:
    """Choose widths, write the file, print the layers and how the allocation does.

    Raises:
        QuantDriftError: anything wrong with spec, data, model or disk.
    """
    spec = parse(options.spec)
    try:
        done = allocate_spec(
            spec,
            options.dataset,
            out=options.out,
            settings=Settings(batch_size=options.batch_size, noise_floor=False),
            store=default_store() if options.cache else EmbeddingStore(None),
            progress=Silent() if options.quiet else Terminal(),
            keep=dict(_kept(text) for text in options.keep),
            check=options.check,
            device=options.device,
            revision=options.revision,
        )
    except KeyboardInterrupt:
        written = options.out.exists()
        what = f"{options.out} is written" if written else f"{options.out} was not written"
        kept = "; what was measured is kept, and the same command goes on" if options.cache else ""
        raise Interrupted(what + kept) from None
    if options.json_output:
        print(json.dumps(_json(done, options.out), indent=2, ensure_ascii=False))
    else:
        _print(done, options)


def _kept(text: str) -> tuple[str, int]:
    """A pattern and a width, of PATTERN=WIDTH; the width is 16 if there is none."""
    pattern, _, width = text.rpartition("=")
    if not pattern:
        return text, 16
    if not width.isdecimal():
        raise QuantDriftError(f"--keep {text}: expected PATTERN or PATTERN=BITS, e.g. '*.0.*=8'")
    return pattern, int(width)


def _print(done: Allocated, options: AllocateOptions) -> None:
    out, allocation = console(), done.allocation

    def say(text: str = "") -> None:
        out.print(text, highlight=False, soft_wrap=True)

    measured = f"measured on {len(allocation.input_ids)} queries of {allocation.dataset}"
    source = measured if allocation.input_ids else "without any input"
    say(f"\n[bold]{escape(options.spec)}[/bold]: {allocation.criterion}, {escape(source)}")
    out.print(_layers(allocation))
    free = [layer for layer in allocation.layers if layer.loss is not None]
    counts = ", ".join(
        f"{sum(layer.width == width for layer in free)} at {width} bits"
        for width in allocation.widths
    )
    say(
        f"{len(allocation.layers)} linear layers, {counts}: {allocation.bits_per_weight:.3f} bits "
        f"per weight of at most {allocation.budget:g}"
    )
    say(
        f"{allocation.all_parameters_bits:.2f} bits over all parameters, scales and token "
        "embeddings included"
    )
    if allocation.gap is not None and allocation.gap > 0:
        say(f"at most {100 * allocation.gap:.1f} % above the least loss there is")
    if done.contest is not None:
        _print_contest(out, done.contest, allocation)
    model = options.spec.rpartition("@")[0]
    say(f"\nallocation: {escape(str(options.out))}")
    say(f"use it: quantdrift run {escape(model)}@{escape(str(options.out))} {options.shown_data}")


def _layers(allocation: Allocation) -> Table:
    """Every layer with its loss; the shares add up to one over the layers."""
    table = Table(box=None, pad_edge=False)
    table.add_column("layer", overflow="fold")
    table.add_column("weights", justify="right")
    for width in allocation.widths[:-1]:
        table.add_column(f"share of loss, W{width}", justify="right")
    table.add_column("bits", justify="right")
    totals = [
        sum(layer.loss[column] for layer in allocation.layers if layer.loss is not None)
        for column in range(len(allocation.widths) - 1)
    ]
    for layer in allocation.layers:
        table.add_row(
            escape(layer.name), f"{layer.n_weights:,}", *_shares(layer, totals), f"{layer.width}"
        )
    return table


def _shares(layer: AllocatedLayer, totals: Sequence[float]) -> list[str]:
    if layer.loss is None:
        return ["kept"] * len(totals)
    shares = zip(layer.loss[:-1], totals, strict=True)
    return [f"{100 * loss / total:.1f} %" if total else "0.0 %" for loss, total in shares]


def _print_contest(out: Console, contest: Contest, allocation: Allocation) -> None:
    out.print(
        f"\nOn {contest.n_queries} other queries, rounded to nearest (95 % intervals):",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False)
    for name in ("bits from", "bits", "other first answer", "more than this allocation"):
        table.add_column(name, justify="left" if name == "bits from" else "right")
    for rival in contest.rivals:
        table.add_row(
            escape(rival.name),
            f"{rival.bits_per_weight:.2f}",
            _percent(rival),
            "" if rival.difference is None else _points(rival),
        )
    out.print(table)
    out.print(_verdict(contest, allocation), highlight=False, soft_wrap=True)


def _verdict(contest: Contest, allocation: Allocation) -> str:
    better = contest.beaten_by
    if better:
        best = better[0]
        return (
            f"{allocation.criterion} did not win: {best.name} changes "
            f"{abs(100 * (_value(best.difference) or 0.0)):.1f} points fewer ({_points(best)}). "
            f"Use it with another criterion, or measure on more queries"
        )
    tied = [
        rival.name
        for rival in contest.rivals[1:]
        if rival.difference and (rival.difference.low or 0.0) <= 0
    ]
    if not tied:
        return f"{allocation.criterion} changes fewest answers, beyond chance against each rival"
    return (
        f"{allocation.criterion} changes fewest answers; {', '.join(tied)} could still be as good "
        f"(their intervals reach 0)"
    )


def _percent(rival: Rival) -> str:
    flips = rival.flips
    if flips.value is None or flips.low is None or flips.high is None:
        return "-"
    return f"{100 * flips.value:.1f} % ({100 * flips.low:.1f} to {100 * flips.high:.1f})"


def _points(rival: Rival) -> str:
    found = rival.difference
    if found is None or found.value is None or found.low is None or found.high is None:
        return "-"
    return f"{100 * found.value:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"


def _value(estimate: Any) -> float | None:
    return None if estimate is None else estimate.value


def _json(done: Allocated, path: Path) -> dict[str, Any]:
    contest = done.contest
    return {
        "path": str(path),
        "allocation": json.loads(path.read_text(encoding="utf-8")),
        "held_out": None
        if contest is None
        else {
            "n_queries": contest.n_queries,
            "rivals": [
                {
                    "name": rival.name,
                    "bits_per_weight": rival.bits_per_weight,
                    "flip@1": rival.flips.to_json(),
                    "difference": rival.difference and rival.difference.to_json(),
                }
                for rival in contest.rivals
            ],
        },
    }
