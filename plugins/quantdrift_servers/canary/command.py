"""`quantdrift canary`: check whether a model is still the one that an index was built with."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from quantdrift.parts import Grid, Output, QuantDriftError, argument, find_model, option, prints
from quantdrift_servers.canary import record
from quantdrift_servers.texts import TEXTS, Role, Texts, accepted, draw, embedded, shortened, without

MODEL = "a name, a folder, or a server: openai:http://localhost:8000/v1#my-model"
_SHOWN = 16
"""Texts of the table at most."""


@dataclass(frozen=True, kw_only=True)
class Asking:
    """The options that both commands share."""

    query_prefix: str | None = option("TEXT: Servers: text to put before every query.")
    document_prefix: str | None = option("TEXT: Servers: text to put before every document.")
    timeout: float = option(
        "SECONDS: Servers: time limit of a request, failed attempts included.", default=10.0, min=0.01
    )
    device: str | None = option("DEVICE: Model: Where it runs: cpu, cuda, cuda:1 or mps; by default the fastest one.")


@dataclass(frozen=True, kw_only=True)
class SaveOptions(Asking):
    """The options of `quantdrift canary save`."""

    model: str = argument(f"MODEL: The model that the index is built with: {MODEL}.")
    out: Path = option("-o --out FILE: File to write, beside the index.", default=...)
    data: Path | None = option(
        "FOLDER: Data: Folder in BEIR layout, whose texts are embedded instead of the built-in ones."
    )
    texts: int = option("N: How many texts.", default=len(TEXTS), min=2, max=record.MOST)


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Asking):
    """The options of `quantdrift canary check`."""

    file: Path = argument("FILE: The file that quantdrift canary save wrote.")
    model: str | None = argument(f"MODEL: The model to check, {MODEL}; by default the one that was saved.", None)
    tolerance: float | None = option(
        "X: Largest 1 - cosine that is no change; by default 1e-5, or 10 times the model's own noise if that is more.",
        min=0.0,
    )


@prints("json")
def save(options: SaveOptions) -> Output:
    """Save the embeddings of a few texts.

    quantdrift canary check then tells whether a model is still the same.

    Example: quantdrift canary save minilm -o index/canary.json
    """
    record.Canary.check_place(options.out)
    texts: Texts = TEXTS[: options.texts]
    if options.data is not None:
        from quantdrift.parts import read_beir_folder

        texts = draw(read_beir_folder(options.data), options.texts)
    elif options.texts > len(TEXTS):
        raise QuantDriftError(f"there are {len(TEXTS)} built-in texts; for {options.texts} expected --data FOLDER")
    model = _opened(options.model, options, {})
    kept, left_out = without(texts, accepted(model, texts, len(texts))[1])
    if len(kept) < 2:  # noqa: PLR2004 -- a nearest other text
        raise QuantDriftError(f"expected a model that takes two texts or more; {options.model} takes {len(kept)}")
    prefixes: dict[Role, str] = {"query": model.prompt("query"), "document": model.prompt("document")}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    canary = record.make(options.model, kept, partial(embedded, model), prefixes=prefixes, now=now)
    canary.write(options.out)
    return Output(
        data={"path": str(options.out), "texts": len(kept), "dimension": canary.dimension, "noise": canary.noise},
        title=f"{len(kept)} texts of {options.model}, {canary.dimension:,} numbers each",
        lines=[*left_out, f"noise of the model itself, in other batches: {canary.noise:.1e} (1 - cosine)"],
        next=[f"written: {options.out}", f"to check it later: quantdrift canary check {shlex.quote(str(options.out))}"],
    )


@prints("json")
def check(options: CheckOptions) -> Output:
    """Check whether a model is still the same.

    The model embeds the texts again, and the embeddings are compared with those saved. The exit code is 0 (the same
    model), 1 (changed) or 2 (the model cannot be asked). With a server it takes about a second, without torch.

    Example: quantdrift canary check index/canary.json openai:http://localhost:8000/v1#my-model
    """
    canary = record.Canary.read(options.file)
    name = options.model or canary.model
    model = _opened(name, options, canary.prefixes)
    check = record.compare(canary, *accepted(model, canary.asked, len(canary.texts)), tolerance=options.tolerance)
    verdict = "changed" if check.changed else "same"
    held = {"model": name, "saved": canary.model_dump(exclude={"texts"}), "texts_changed": check.over}
    return Output(
        data={"verdict": verdict, **held, **asdict(check)},
        title=f"{verdict}: {name}, compared with {canary.model} of {canary.saved}",
        about=list(_told(canary, check)),
        grids=[_most_changed(canary, check)] if check.over else [],
        lines=list(_hints(check)),
        code=int(check.changed),
    )


def _opened(name: str, options: Asking, prefixes: Mapping[Any, str]) -> Any:
    """Load a model, or connect to its server."""
    asked = {"query": options.query_prefix, "document": options.document_prefix}
    new: dict[str, str] = {role: text for role, text in asked.items() if text is not None}
    model = find_model(name)
    if new and not model.on_server:
        raise QuantDriftError(f"--{next(iter(new))}-prefix is for a model on a server; got {name!r}")
    return model.load(device=options.device, prefixes={**prefixes, **new}, timeout=options.timeout)


def _told(canary: record.Canary, check: record.Check) -> Iterator[str]:
    if not check.moved:
        yield f"embeddings have {check.dimension:,} numbers, and had {canary.dimension:,}"
        return
    yield (
        f"1 - cosine: {max(check.turned):.1e} at most, {fmean(check.turned):.1e} on average; tolerance "
        f"{check.tolerance:.1e}, noise when it was saved {canary.noise:.1e}"
    )
    yield f"length of the embeddings: {min(check.ratios):.4f} to {max(check.ratios):.4f} times what it was"
    yield (
        f"{len(check.over):,} of {len(canary.texts):,} texts changed; {check.nearest_changed:,} have a new nearest text"
    )


def _most_changed(canary: record.Canary, check: record.Check) -> Grid:
    moved = [(f"{turned:.1e}", f"{ratio:.4f}") for turned, ratio in zip(check.turned, check.ratios, strict=True)]
    figures = dict(zip(check.asked, moved, strict=False))  # empty if the dimension differs
    rows = [
        [shortened(canary.texts[row].text), canary.texts[row].role, *figures.get(row, ("refused", "-"))]
        for row in check.over[:_SHOWN]
    ]
    return Grid(title="most changed", head=["text", "role", "1 - cosine", "length"], rows=rows, words={"role"})


def _hints(check: record.Check) -> Iterator[str]:
    """Say what kind of change it is, where that is known."""
    if check.refused:
        yield f"{len(check.refused)} of the texts are refused now, and were not before"
    elif check.over and max(check.turned) <= check.tolerance:
        yield "directions are the same, only lengths changed: embeddings are normalized differently"


COMMANDS = {"save": save, "check": check}
