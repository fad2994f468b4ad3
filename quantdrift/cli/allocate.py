"""`quantdrift allocate`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from quantdrift.allocation.record import AllocatedLayer, Allocation, can_be_named, check_place
from quantdrift.cli import Interrupted
from quantdrift.cli.measuring import ModelOptions
from quantdrift.cli.tables import console, headed
from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.display import clean, print_json
from quantdrift.doctor import CALIBRATED
from quantdrift.engine.refusals import check_spec
from quantdrift.errors import QuantDriftError
from quantdrift.records import read_json
from quantdrift.spec import ALLOCATION_KEYS, FULL_BITS, Scheme, Spec, parse

if TYPE_CHECKING:
    from quantdrift.engine.sensitivity.jobs import Allocated


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateOptions(ModelOptions):
    """The options of `quantdrift allocate`, as typed by the user."""

    spec: str
    dataset: RetrievalDataset
    shown_data: str
    out: Path
    keep: Sequence[str]
    check: bool


def allocate_command(options: AllocateOptions) -> None:
    """Choose widths, write the file, print the layers and how the allocation does.

    Raises:
        QuantDriftError: anything wrong with spec, data, model or disk.
    """
    spec, keep = parse(options.spec), _keep(options.keep)
    check_spec(spec)
    check_place(options.out)
    from quantdrift.engine.sensitivity.jobs import allocate_spec  # noqa: PLC0415 -- torch, after refusals

    before = _state(options.out)
    try:
        done = allocate_spec(
            spec,
            options.dataset,
            out=options.out,
            settings=options.settings,
            store=options.store,
            progress=options.progress,
            keep=keep,
            check=options.check,
            device=options.device,
            revision=options.revision,
        )
    except KeyboardInterrupt:
        written = _state(options.out) != before
        what = f"{options.out} is written" if written else f"{options.out} was not written"
        kept = "; what was measured is kept, and the same command goes on" if options.store.root else ""
        raise Interrupted(what + kept) from None
    if options.json_output:
        print_json(_json(done, options.out))
    else:
        _print(done, spec, options)


def _state(path: Path) -> tuple[int, int] | None:
    """What tells a file from the one that was there before it."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _keep(texts: Sequence[str]) -> dict[str, int]:
    keep: dict[str, int] = {}
    for text in texts:
        pattern, width = _kept(text)
        if keep.setdefault(pattern, width) != width:
            raise QuantDriftError(
                f"--keep {pattern} is given with {keep[pattern]} bits and with {width}; expected one of them"
            )
    return keep


def _kept(text: str) -> tuple[str, int]:
    """A pattern and a width, of PATTERN=WIDTH; the width is 16 if there is none."""
    pattern, _, width = text.rpartition("=")
    if not pattern:
        return text, FULL_BITS
    if not width.isdecimal():
        raise QuantDriftError(f"--keep {text}: expected PATTERN or PATTERN=BITS, e.g. '*.0.*=8'")
    return pattern, int(width)


def _print(done: Allocated, spec: Spec, options: AllocateOptions) -> None:
    out, allocation = console(), done.allocation

    def say(text: str = "") -> None:
        out.print(text, soft_wrap=True)

    measured = f"measured on {len(allocation.input_ids)} queries of {allocation.dataset}"
    source = measured if allocation.input_ids else "without any input"
    out.print()
    out.print(headed(options.spec, f": {allocation.criterion}, {source}"), soft_wrap=True)
    out.print(_layers(allocation))
    free = [layer for layer in allocation.layers if layer.loss is not None]
    counts = ", ".join(f"{sum(layer.width == width for layer in free)} at {width} bits" for width in allocation.widths)
    say(
        f"{len(allocation.layers)} linear layers, {counts}: {allocation.bits_per_weight:.3f} bits "
        f"per weight of at most {allocation.budget:g}"
    )
    say(f"{allocation.all_parameters_bits:.2f} bits over all parameters, scales and token embeddings included")
    if allocation.bound and allocation.loss > allocation.bound:
        above = allocation.loss / allocation.bound - 1
        say(f"at most {100 * above:.1f} % above the least loss there is")
    if done.contest is not None:
        from quantdrift.cli.contest import print_contest  # noqa: PLC0415 -- torch

        print_contest(out, done.contest, allocation)
    say(f"\nallocation: {options.out}")
    named = _named(spec, str(options.out))
    if named is None:
        say("use it: first give it a name without spaces, '+' and '@', which a spec can hold")
    else:
        say(f"use it: quantdrift run {shlex.quote(named)} {options.shown_data}")


def _named(spec: Spec, file: str) -> str | None:
    """The spec of the same pair with the widths of a file; None if no spec can name it."""
    if not can_be_named(file):
        return None
    scheme = spec.scheme
    rest = [(key, value) for key, value in scheme.options if key not in ALLOCATION_KEYS]
    if not file.endswith(".json") or "=" in file or scheme.activation_bits is not None:
        widths = [(key, value) for key, value in scheme.options if key == "widths"]
        options = (*rest, *widths, ("allocation", file))
        return str(replace(spec, scheme=replace(scheme, options=_taken(scheme, options))))
    query = ["query"] if scheme.query_only else []
    settings = [f"{key}={value}" for key, value in _taken(scheme, rest)]
    return "+".join([f"{spec.model}@{file}", *query, *settings])


def _taken(scheme: Scheme, options: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Options without a seed that drew calibration queries only."""
    calibrated = scheme.quantizer in CALIBRATED or scheme.activation_bits is not None
    return tuple(pair for pair in options if calibrated or pair[0] != "seed")


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
        table.add_row(clean(layer.name), f"{layer.n_weights:,}", *_shares(layer, totals), f"{layer.width}")
    return table


def _shares(layer: AllocatedLayer, totals: Sequence[float]) -> list[str]:
    if layer.loss is None:
        return ["kept"] * len(totals)
    shares = zip(layer.loss[:-1], totals, strict=True)
    return [f"{100 * loss / total:.1f} %" if total else "0.0 %" for loss, total in shares]


def _json(done: Allocated, path: Path) -> dict[str, Any]:
    contest = done.contest
    return {
        "path": str(path),
        "allocation": read_json(path),
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
