"""`quantdrift canary`: is the model still the one that an index was built with?"""

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

import numpy as np

from quantdrift.base.display import note, shown
from quantdrift.base.errors import QuantDriftError, ServerError
from quantdrift.base.text import counted
from quantdrift.cli.options import DATA, DEVICE, argument, of_texts, option, prints
from quantdrift.features.canary import record
from quantdrift.show.output import Output
from quantdrift.show.tables import Grid
from quantdrift.spec.grammar import is_endpoint, read_endpoint
from quantdrift.statistics.estimates import as_json

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
    device: str | None = option(DEVICE)


@dataclass(frozen=True, kw_only=True)
class SaveOptions(Asking):
    """The options of `quantdrift canary save`."""

    model: str = argument(f"MODEL: The model that the index is built with: {MODEL}.")
    out: Path = option("-o --out FILE: File to write, beside the index.", default=...)
    data: Path | None = option(f"{DATA} Its texts are taken in place of the built-in ones.")
    texts: int = option("N: How many texts.", default=len(record.TEXTS), min=2, max=record.MOST)


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
    texts = list(record.TEXTS[: options.texts])
    if options.data is not None:
        from quantdrift.data.labelled import read_folder, searched

        corpus = of_texts(searched(read_folder(options.data)), "canary")
        texts = record.draw(corpus.queries, corpus.documents, options.texts)
    elif options.texts > len(record.TEXTS):
        raise QuantDriftError(
            f"there are {len(record.TEXTS)} built-in texts; for {options.texts} expected --data FOLDER"
        )
    model = _opened(options.model, options, {})
    _, refused = model.embed(texts)
    for row in refused:
        note(f"{options.model} does not take this text, which is left out: {shown(texts[row][1])!r}")
    texts = [text for row, text in enumerate(texts) if row not in refused]
    if len(texts) < 2:  # noqa: PLR2004 -- nothing is near another otherwise
        raise QuantDriftError(f"expected a model that takes two texts or more; {options.model} takes {len(texts)}")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    canary = record.make(options.model, texts, model.encode, prefixes=model.prefixes, now=now)
    canary.write(options.out)
    return Output(
        data={"path": str(options.out), "texts": len(texts), "dimension": canary.dimension, "noise": canary.noise},
        title=f"{counted(len(texts), 'text')} of {options.model}, {canary.dimension:,} numbers each",
        lines=[f"its own noise, in other batches: {canary.noise:.1e} (1 - cosine)"],
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
    check = record.compare(canary, *model.embed(canary.asked), tolerance=options.tolerance)
    verdict = "changed" if check.changed else "same"
    before = canary.model if name != canary.model else "MODEL"
    held = {"model": name, "saved": canary.model_dump(exclude={"texts"}), "texts_changed": check.over}
    return Output(
        data={"verdict": verdict, **held, **as_json(check)},
        title=f"{verdict}: {name}, held against {canary.model} of {canary.saved}",
        about=list(_told(canary, check)),
        grids=[_most_changed(canary, check)] if check.over else [],
        lines=list(_hints(canary, check)),
        next=[f'why: quantdrift diagnose "{before} vs {name}" --data FOLDER'] if check.changed else [],
        code=int(check.changed),
    )


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
        f"{len(check.over):,} of {counted(len(canary.texts), 'text')} changed; the nearest other text is another for "
        f"{check.nearest_changed:,}"
    )


def _most_changed(canary: record.Canary, check: record.Check) -> Grid:
    moved = [(f"{turned:.1e}", f"{ratio:.4f}") for turned, ratio in zip(check.turned, check.ratios, strict=True)]
    figures = dict(zip(check.asked, moved, strict=False))  # there are none if the dimension is another
    rows = [
        [shown(canary.texts[row].text.strip()), canary.texts[row].role, *figures.get(row, ("refused", "-"))]
        for row in check.over[:_SHOWN]
    ]
    return Grid(title="most changed", head=["text", "role", "1 - cosine", "length"], rows=rows, words={"role"})


def _hints(canary: record.Canary, check: record.Check) -> Iterator[str]:
    """What the texts that changed have in common, if the others have not."""
    over, texts = set(check.over), canary.texts
    if check.refused:
        yield f"{counted(len(check.refused), 'text')} that it took before, and refuses now"
    elif check.turned and over and max(check.turned) <= check.tolerance:
        yield "directions are the same, only lengths changed: embeddings are normalised otherwise"
    moved = dict(zip(check.asked, check.moved, strict=False))
    # another cut or prompt leaves the other texts as they were; other weights move them all
    if len(over) == len(texts) or any(moved[row] > _STILL * check.tolerance for row in moved.keys() - over):
        return
    longest = sorted(range(len(texts)), key=lambda row: -len(texts[row].text))[: len(over)]
    if over and over == set(longest):
        yield "only long texts changed: they may be cut at another length"
    for finding, holds in _KINDS.items():
        if over and over == {row for row, text in enumerate(texts) if holds(text)}:
            yield f"only {finding}"


_KINDS: dict[str, Callable[[record.Text], bool]] = {
    "queries changed: another prompt may stand before them": lambda text: text.role == "query",
    "documents changed: another prompt may stand before them": lambda text: text.role != "query",
    "texts with signs beyond ASCII changed: another tokenizer?": lambda text: not text.text.isascii(),
    "texts with capitals changed: another tokenizer?": lambda text: text.text != text.text.lower(),
}
"""What is said where all texts of a kind changed, and no others."""


# --- the model ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Model:
    """A model that is ready: what embeds, what it puts before texts, and what tells that it refuses one."""

    encode: record.Encode
    prefixes: dict[record.Role, str]
    refusal: tuple[type[QuantDriftError], ...] = ()

    def embed(self, texts: Sequence[tuple[record.Role, str]]) -> tuple[record.Vectors, list[int]]:
        """The embeddings of the texts that it takes, and positions of the others."""
        try:
            return self.encode(texts, len(texts)), []
        except self.refusal as first:
            taken, refused = [], []
            for row, text in enumerate(texts):  # one that is refused is told from the others by itself
                try:
                    taken.append(self.encode([text], 1))
                except self.refusal:
                    refused.append(row)
            if not taken:
                raise ServerError(f"it takes none of the texts: {first}") from first
            return np.concatenate(taken), refused


def _opened(name: str, options: Asking, prefixes: Mapping[record.Role, str]) -> _Model:
    """A model that is loaded, or on a server; one that a file names is no reason to send it the common key."""
    asked: dict[record.Role, str | None] = {"query": options.query_prefix, "document": options.document_prefix}
    given: dict[record.Role, str] = {role: text for role, text in asked.items() if text is not None}
    if is_endpoint(name):
        return _on_server(name, {**prefixes, **given}, options.timeout)
    if given:
        raise QuantDriftError(f"--{next(iter(given))}-prefix is for a model on a server; got {name!r}")
    from quantdrift.models.files.checkpoint import find_checkpoint

    checkpoint = find_checkpoint(name)  # a wrong name is told before torch is loaded
    from quantdrift.asking.opening import load_searching
    from quantdrift.models.model import check_vectors

    if checkpoint.method == "none":
        encoder = load_searching(name, device=options.device)
        check_vectors(encoder, f"{name}: a model is told again")
    else:
        from quantdrift.builtin.sentence.work import pick_device
        from quantdrift.candidate.checkpoint import load_checkpoint

        encoder = load_checkpoint(checkpoint, None, device=pick_device(options.device))

    def encode(texts: Sequence[tuple[record.Role, str]], size: int) -> record.Vectors:
        rows: list[int] = []
        parts = []
        for role in dict.fromkeys(role for role, _ in texts):
            of_role = [row for row, text in enumerate(texts) if text[0] == role]
            parts.append(encoder.encode([texts[row][1] for row in of_role], role, size))
            rows += of_role
        return np.asarray(np.concatenate(parts)[np.argsort(rows)])

    return _Model(encode=encode, prefixes={role: encoder.prompt(role) for role in asked})


def _on_server(name: str, prefixes: dict[record.Role, str], timeout: float) -> _Model:
    from quantdrift.base.keys import OPENAI, find_key
    from quantdrift.models.server import in_halves
    from quantdrift.models.server_client import EndpointClient, OneInputError, RetryPolicy

    endpoint = read_endpoint(name)
    until = 0.0

    def wait(seconds: float) -> None:
        if time.monotonic() + seconds > until:
            raise ServerError(
                f"{endpoint.url} gave no embeddings within {timeout:g} s; is the server running? For longer: --timeout"
            )
        time.sleep(seconds)

    retry_policy = RetryPolicy(timeout=timeout, sleep=wait)
    client = EndpointClient(endpoint, key=find_key(OPENAI, endpoint.url), retry_policy=retry_policy)

    def encode(texts: Sequence[tuple[record.Role, str]], size: int) -> record.Vectors:
        nonlocal until
        until = time.monotonic() + timeout
        sent = [prefixes.get(role, "") + text for role, text in texts]
        parts = [range(at, min(at + size, len(sent))) for at in range(0, len(sent), size)]
        return np.concatenate([in_halves(client.embed, sent, part) for part in parts])

    return _Model(encode=encode, prefixes=prefixes, refusal=(OneInputError,))


COMMANDS = {"save": save, "check": check}
