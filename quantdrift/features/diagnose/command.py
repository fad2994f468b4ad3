"""`quantdrift diagnose`: why do two runtimes of one model give different embeddings?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quantdrift.base.errors import QuantDriftError
from quantdrift.base.text import counted
from quantdrift.cli.options import DATA, SPLIT, TASK, OnModel, argument, corpus, of_texts, option, prints
from quantdrift.show.output import Output
from quantdrift.show.tables import Grid
from quantdrift.spec.grammar import Versus, parse_pair

if TYPE_CHECKING:
    from quantdrift.features.diagnose.diagnosis import Diagnosis

_NOTHING = 1e-12
"""1 - cosine that is printed as 0."""


@dataclass(frozen=True, kw_only=True)
class DiagnoseOptions(OnModel):
    """The options of `quantdrift diagnose`."""

    pair: str = argument('PAIR: "A vs B": models, folders, checkpoints, ONNX folders, or openai:URL#MODEL')
    data: Path | None = option(DATA)
    task: str | None = option(TASK)
    split: str = option(SPLIT, default="test")
    inputs: int = option("-n --inputs N: About how many texts to encode.", default=36, min=8, max=500)


@prints("json", "markdown")
def command(options: DiagnoseOptions) -> Output:
    """Why do two runtimes of what should be one model give different embeddings? Before anyone blames bits.

    A few texts are encoded by both. Then the side that is a model in memory is changed in one way at a time (prompt,
    pooling, special tokens, token limit, case) and encodes again; vectors are compared in length and order of
    dimensions. What makes the difference go away explains it; what is left is quantization, number type or kernels.

    A server gets the texts as they are, without prompts, as a client that knows of none would send them.

    For example: quantdrift diagnose "minilm vs openai:http://localhost:8080/v1#minilm" --data ./cranfield
    """
    pair = parse_pair(options.pair)
    if not isinstance(pair, Versus):
        raise QuantDriftError(
            f'{options.pair} is a model and its own quantization; expected two, such as "minilm vs ./minilm-onnx"'
        )
    dataset = of_texts(corpus(options.data, options.task, options.split), "diagnose")
    from quantdrift.engine.encoders.server import EndpointEncoder
    from quantdrift.engine.opening import open_pair
    from quantdrift.engine.pair import TwoModels
    from quantdrift.features.diagnose.diagnosis import diagnose

    with options.stoppable("nothing was written"):
        opened = open_pair(pair, dataset, device=options.device, revision=options.revision, dtype=options.dtype)
        assert isinstance(opened.pair, TwoModels)  # that is what two models are
        sides = opened.pair.reference, opened.pair.candidate_model
        for side in sides:
            if isinstance(side, EndpointEncoder):
                side.learn({}, {})
        found = diagnose(*sides, dataset, n=options.inputs, batch_size=options.batch_size, progress=options.progress)
    return Output(
        data={"pair": str(pair), **asdict(found)},
        title=f"{pair}: {counted(found.n, 'text')} of {dataset.name}",
        grids=[_grid(found)],
        lines=list(_words(found)),
    )


def _words(found: Diagnosis) -> Iterator[str]:
    from quantdrift.features.diagnose.diagnosis import ROUNDING

    flips = f"{found.first[0]:,} of {found.n_queries:,} queries have another top-1 among these texts"
    if found.before <= ROUNDING and not found.found:
        yield f"Both give the same embeddings (1 - cosine {_distance(found.before)}): there is nothing to explain."
        return
    distance = f"mean 1 - cosine {_distance(found.before)}, worst {_distance(found.worst)}"
    yield f"{'They point the same way' if found.before <= ROUNDING else 'They differ'}: {distance}; {flips}."
    for one in found.found:
        yield f"{one.name}: {one.told}. What to do: {one.advice}."
    if not found.found:
        yield "No hypothesis explains it: it is quantization, the number type, kernels, or other weights."
        return
    if found.left > ROUNDING:
        share = 100 * (1 - found.left / found.before) if found.before else 0.0
        yield (
            f"That explains {share:.1f} % of the difference; what is left, {_distance(found.left)}, is quantization, "
            f"number type or kernels, and changes {found.first[1]:,} of the {found.n_queries:,} first answers."
        )
    else:
        yield "That explains all of it."


def _grid(found: Diagnosis) -> Grid:
    rows = []
    for one in found.tried:
        told = one.told
        if one.why_not:
            told = f"cannot be tried: {one.why_not}"
        elif one.ways and one.verdict == "does not":
            told = f"none of {counted(one.ways, 'way')} that were tried" if one.ways > 1 else f"not so: {one.told}"
        after, verdict = ("-", "-") if one.why_not else (_distance(one.after), one.verdict)
        rows.append([one.name, told, after, verdict])
    return Grid(
        head=["hypothesis", "what was found", "1 - cosine then", "by itself"],
        rows=rows,
        words={"what was found", "by itself"},
    )


def _distance(value: float) -> str:
    """1 - cosine; what is below the rounding of float64 is 0."""
    return "0" if value < _NOTHING else f"{value:.1e}"
