"""`quantdrift diagnose`: why do two runtimes of one model give different embeddings?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from quantdrift.base.errors import QuantDriftError
from quantdrift.base.text import counted
from quantdrift.cli.options import OnCorpus, OnModel, argument, of_texts, option, prints
from quantdrift.features.canary.record import TEXTS, by_role, draw
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, table
from quantdrift.spec.grammar import Versus, parse_pair

if TYPE_CHECKING:
    from quantdrift.features.diagnose.diagnosis import Diagnosis

_NOTHING = 1e-12
"""1 - cosine that is printed as 0."""


@dataclass(frozen=True, kw_only=True)
class DiagnoseOptions(OnCorpus, OnModel):
    """The options of `quantdrift diagnose`."""

    pair: str = argument('PAIR: "A vs B": models, folders, checkpoints, ONNX folders, or openai:URL#MODEL')
    inputs: int = option(
        "-n --inputs N: About how many texts to encode, 16 built-in ones among them.", default=36, min=20, max=500
    )


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
    drawn = draw(dataset.queries, dataset.documents, options.inputs - len(TEXTS))
    texts = by_role((role, text) for role, text in (*TEXTS, *drawn) if text.strip())
    from quantdrift.asking.opening import open_pair
    from quantdrift.candidate.pair import TwoModels
    from quantdrift.features.diagnose.diagnosis import diagnose
    from quantdrift.models.server import EndpointEncoder

    with options.stoppable("nothing was written"):
        opened = open_pair(pair, dataset, device=options.device, revision=options.revision, **options.settings.loading)
        assert isinstance(opened.pair, TwoModels)  # that is what two models are
        sides = opened.pair.reference, opened.pair.candidate_model
        for side in sides:
            if isinstance(side, EndpointEncoder):
                side.learn({}, {})
        diagnosis = diagnose(*sides, texts, batch_size=options.batch_size, progress=options.progress)
    return Output(
        data={"pair": str(pair), **asdict(diagnosis)},
        title=f"{pair}: {counted(diagnosis.n, 'text')}",
        grids=[table(_TRIED, diagnosis.tried)],
        lines=list(_words(diagnosis)),
    )


def _words(diagnosis: Diagnosis) -> Iterator[str]:
    from quantdrift.features.diagnose.diagnosis import ROUNDING

    if diagnosis.before <= ROUNDING and not diagnosis.found:
        yield f"Both give the same embeddings (1 - cosine {_distance(diagnosis.before)}): there is nothing to explain."
        return
    yield f"They differ: mean 1 - cosine {_distance(diagnosis.before)}, worst {_distance(diagnosis.worst)}."
    if not diagnosis.changed:
        yield "Neither side is a model that can be changed here: only their vectors were compared."
    for cause in diagnosis.found:
        yield f"{cause.name}: {cause.told}. What to do: {cause.advice}."
    if not diagnosis.found:
        yield "No hypothesis explains it: it is quantization, the number type, kernels, or other weights."
    elif diagnosis.left > ROUNDING:
        share = 1 - diagnosis.left / diagnosis.before  # other lengths or fewer dimensions leave cosines as they are
        explained = f"That explains {100 * share:.1f} % of the difference; what" if share else "What"
        yield f"{explained} is left, {_distance(diagnosis.left)}, is quantization, number type or kernels."
    else:
        yield "That explains all of it."


def _distance(value: float) -> str:
    """1 - cosine; what is below the rounding of float64 is 0."""
    return "0" if value < _NOTHING else f"{value:.1e}"


_TRIED = (
    Column("what may differ", "name"),
    Column("nearest variant", "told", kind="words"),
    Column("1 - cosine then", "after", _distance),
    Column("by itself", "verdict", kind="words"),
)
