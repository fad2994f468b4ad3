"""`quantdrift canary`: is the model still the one that an index was built with?"""

import shlex
from collections.abc import Callable, Iterator, Mapping
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
_SHOWN = 5
_STILL = 0.1
"""Part of the tolerance that texts stay below which a change has left alone."""


@dataclass(frozen=True, kw_only=True)
class Asking:
    """Options of both commands."""

    query_prefix: str | None = option("TEXT: Servers: text to put before every query.")
    document_prefix: str | None = option("TEXT: Servers: text to put before every document.")
    timeout: float = option(
        "SECONDS: Servers: give up after so long, attempts that failed included.", default=10.0, min=0.01
    )
    device: str | None = option("DEVICE: Model: Where it runs: cpu, cuda, cuda:1 or mps; by default the fastest one.")


@dataclass(frozen=True, kw_only=True)
class SaveOptions(Asking):
    """The options of `quantdrift canary save`."""

    model: str = argument(f"MODEL: The model that the index is built with: {MODEL}.")
    out: Path = option("-o --out FILE: File to write, beside the index.", default=...)
    data: Path | None = option(
        "FOLDER: Data: Folder in BEIR layout, whose texts are taken in place of the built-in ones."
    )
    texts: int = option("N: How many texts.", default=len(TEXTS), min=2, max=record.MOST)


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Asking):
    """The options of `quantdrift canary check`."""

    file: Path = argument("FILE: What quantdrift canary save wrote.")
    model: str | None = argument(f"MODEL: The model to ask, {MODEL}; by default the one that was saved.", None)
    tolerance: float | None = option(
        "X: Largest 1 - cosine that is no change; by default 1e-5, or 10 times the model's own noise if that is more.",
        min=0.0,
    )


@prints("json")
def save(options: SaveOptions) -> Output:
    """Keep what a model gives a few texts.

    So that quantdrift canary check can tell later whether it is still the same model.

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
    if len(kept) < 2:  # noqa: PLR2004 -- nothing is near another otherwise
        raise QuantDriftError(f"expected a model that takes two texts or more; {options.model} takes {len(kept)}")
    prefixes: dict[Role, str] = {"query": model.prompt("query"), "document": model.prompt("document")}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    canary = record.make(options.model, kept, partial(embedded, model), prefixes=prefixes, now=now)
    canary.write(options.out)
    return Output(
        data={"path": str(options.out), "texts": len(kept), "dimension": canary.dimension, "noise": canary.noise},
        title=f"{len(kept)} texts of {options.model}, {canary.dimension:,} numbers each",
        lines=[*left_out, f"its own noise, in other batches: {canary.noise:.1e} (1 - cosine)"],
        next=[
            f"written: {options.out}",
            f"is it still the same model: quantdrift canary check {shlex.quote(str(options.out))}",
        ],
    )


@prints("json")
def check(options: CheckOptions) -> Output:
    """Is it still the same model?

    Asks the texts again and holds the embeddings against those that were kept. The exit code is 0 (the same model),
    1 (changed) or 2 (it could not be asked). Of a server it takes about a second, and needs no torch.

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
        title=f"{verdict}: {name}, held against {canary.model} of {canary.saved}",
        about=list(_told(canary, check)),
        grids=[_most_changed(canary, check)] if check.over else [],
        lines=list(_hints(canary, check)),
        code=int(check.changed),
    )


def _opened(name: str, options: Asking, prefixes: Mapping[Any, str]) -> Any:
    """A model that is loaded, or on a server; one that a file names is no reason to send it the common key."""
    asked = {"query": options.query_prefix, "document": options.document_prefix}
    given: dict[str, str] = {role: text for role, text in asked.items() if text is not None}
    found = find_model(name)
    if given and not found.on_server:
        raise QuantDriftError(f"--{next(iter(given))}-prefix is for a model on a server; got {name!r}")
    return found.load(device=options.device, prefixes={**prefixes, **given}, timeout=options.timeout)


def _told(canary: record.Canary, check: record.Check) -> Iterator[str]:
    if not check.moved:
        yield f"embeddings have {check.dimension:,} numbers, and had {canary.dimension:,}"
        return
    yield (
        f"1 - cosine: {max(check.turned):.1e} at worst, {fmean(check.turned):.1e} in the mean; tolerated "
        f"{check.tolerance:.1e}, own noise when it was saved {canary.noise:.1e}"
    )
    yield f"length of the embeddings: {min(check.ratios):.4f} to {max(check.ratios):.4f} times what it was"
    yield (
        f"{len(check.over):,} of {len(canary.texts):,} texts changed; the nearest other text is another for "
        f"{check.nearest_changed:,}"
    )


def _most_changed(canary: record.Canary, check: record.Check) -> Grid:
    moved = [(f"{turned:.1e}", f"{ratio:.4f}") for turned, ratio in zip(check.turned, check.ratios, strict=True)]
    figures = dict(zip(check.asked, moved, strict=False))  # there are none if the dimension is another
    rows = [
        [shortened(canary.texts[row].text), canary.texts[row].role, *figures.get(row, ("refused", "-"))]
        for row in check.over[:_SHOWN]
    ]
    return Grid(title="most changed", head=["text", "role", "1 - cosine", "length"], rows=rows, words={"role"})


def _hints(canary: record.Canary, check: record.Check) -> Iterator[str]:
    """What the texts that changed have in common, if the others have not."""
    over, texts = set(check.over), canary.texts
    if check.refused:
        yield f"{len(check.refused)} of the texts are refused now, and were not before"
    elif over and max(check.turned) <= check.tolerance:
        yield "directions are the same, only lengths changed: embeddings are normalised otherwise"
    moved = dict(zip(check.asked, check.moved, strict=False))
    # another cut or prompt leaves the other texts as they were; other weights move them all
    if not over or len(over) == len(texts) or any(moved[row] > _STILL * check.tolerance for row in moved.keys() - over):
        return
    longest = sorted(range(len(texts)), key=lambda row: -len(texts[row].text))[: len(over)]
    if over == set(longest):
        yield "only long texts changed: they may be cut at another length"
    for finding, holds in _KINDS.items():
        if over == {row for row, text in enumerate(texts) if holds(text)}:
            yield f"only {finding}"


_KINDS: dict[str, Callable[[record.Text], bool]] = {
    "queries changed: another prompt may stand before them": lambda text: text.role == "query",
    "documents changed: another prompt may stand before them": lambda text: text.role != "query",
    "texts with signs beyond ASCII changed: another tokenizer?": lambda text: not text.text.isascii(),
    "texts with capitals changed: another tokenizer?": lambda text: text.text != text.text.lower(),
}
"""What is said where all texts of a kind changed, and no others."""


COMMANDS = {"save": save, "check": check}
