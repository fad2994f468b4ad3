"""`quantdrift diagnose`: why do two runtimes of one model give different embeddings?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from quantdrift.base.display import clean
from quantdrift.base.errors import QuantDriftError
from quantdrift.base.text import counted
from quantdrift.cli.options import OnCorpus, OnModel, argument, of_texts, option, prints
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, table
from quantdrift.spec.grammar import Versus, parse_pair

if TYPE_CHECKING:
    from quantdrift.features.diagnose.diagnosis import Diagnosis, Tried

_NOTHING = 1e-12
"""1 - cosine that is printed as 0."""


@dataclass(frozen=True, kw_only=True)
class DiagnoseOptions(OnCorpus, OnModel):
    """The options of `quantdrift diagnose`."""

    pair: str = argument('PAIR: "A vs B": models, folders, checkpoints, ONNX folders, or openai:URL#MODEL')
    inputs: int = option("-n --inputs N: About how many texts to encode.", default=36, min=8, max=500)


@prints("json", "markdown")
def command(options: DiagnoseOptions) -> Output:
    """Why do two runtimes of what should be one model give different embeddings? Before anyone blames bits.

    A few texts are encoded by both. Then the side that is a model in memory is changed in one way at a time (prompt,
    pooling, special tokens, token limit, case) and encodes again; vectors are compared in length and
    dimensions. What makes the difference go away explains it; what is left is quantization, number type or kernels.

    A server gets the texts as they are, without prompts, as a client that knows of none would send them.

    For example: quantdrift diagnose "minilm vs openai:http://localhost:8080/v1#minilm" --data ./cranfield

    More: docs/guides/servers.md
    """
    pair = parse_pair(options.pair)
    if not isinstance(pair, Versus):
        raise QuantDriftError(
            f'{options.pair} is a model and its own quantization; expected two, such as "minilm vs ./minilm-onnx"'
        )
    dataset = of_texts(options.dataset, "diagnose")
    from quantdrift.engine.encoders.server import EndpointEncoder
    from quantdrift.engine.opening import open_pair
    from quantdrift.engine.pair import TwoModels
    from quantdrift.features.diagnose.diagnosis import diagnose

    with options.stoppable("nothing was written"):
        opened = open_pair(pair, dataset, device=options.device, revision=options.revision, **options.settings.loading)
        assert isinstance(opened.pair, TwoModels)  # that is what two models are
        sides = opened.pair.reference, opened.pair.candidate_model
        for side in sides:
            if isinstance(side, EndpointEncoder):
                side.learn({}, {})
        diagnosis = diagnose(
            *sides, dataset, n=options.inputs, batch_size=options.batch_size, progress=options.progress
        )
    return Output(
        data={"pair": str(pair), **asdict(diagnosis)},
        title=f"{pair}: {counted(diagnosis.n, 'text')} of {dataset.name}",
        grids=[table(_TRIED, diagnosis.tried)],
        lines=list(_words(diagnosis)),
    )


def _words(diagnosis: Diagnosis) -> Iterator[str]:
    from quantdrift.features.diagnose.diagnosis import ROUNDING

    flips = f"{diagnosis.first[0]:,} of {diagnosis.n_queries:,} queries have another top-1 among these texts"
    if diagnosis.before <= ROUNDING and not diagnosis.found:
        yield f"Both give the same embeddings (1 - cosine {_distance(diagnosis.before)}): there is nothing to explain."
        return
    distance = f"mean 1 - cosine {_distance(diagnosis.before)}, worst {_distance(diagnosis.worst)}"
    yield f"{'They point the same way' if diagnosis.before <= ROUNDING else 'They differ'}: {distance}; {flips}."
    if n_words := len(diagnosis.shortest.split()):
        text = clean(diagnosis.shortest[:80])
        yield f"The text that differs most does so from {counted(n_words, 'word')} on: {text!r}."
    for cause in diagnosis.found:
        yield f"{cause.name}: {cause.told}. What to do: {cause.advice}."
    if not diagnosis.found:
        yield "No hypothesis explains it: it is quantization, the number type, kernels, or other weights."
        return
    if diagnosis.left > ROUNDING:
        share = 100 * (1 - diagnosis.left / diagnosis.before) if diagnosis.before else 0.0
        yield (
            f"That explains {share:.1f} % of the difference; what is left, {_distance(diagnosis.left)}, is "
            f"quantization, number type or kernels, and changes {diagnosis.first[1]:,} of the "
            f"{diagnosis.n_queries:,} first answers."
        )
    else:
        yield "That explains all of it."


def _finding(tried: Tried) -> str:
    if tried.why_not:
        return f"cannot be tried: {tried.why_not}"
    if tried.ways and tried.verdict == "does not":
        return f"none of {tried.ways:,} ways that were tried" if tried.ways > 1 else f"not so: {tried.told}"
    return tried.told


def _distance(value: float) -> str:
    """1 - cosine; what is below the rounding of float64 is 0."""
    return "0" if value < _NOTHING else f"{value:.1e}"


_TRIED = (
    Column("hypothesis", "name"),
    Column("what was found", _finding, kind="words"),
    Column("1 - cosine then", lambda tried: "-" if tried.why_not else _distance(tried.after)),
    Column("by itself", lambda tried: "-" if tried.why_not else tried.verdict, kind="words"),
)
