"""The list of every input of a run, with its answer and whether that is served."""

from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from quantdrift.finished.texts import read_texts
from quantdrift.runs.folder import Run
from quantdrift.show.tables import Column, write_table
from quantdrift.statistics import conformal


def write_answers(
    run: Run, statistic: conformal.Statistic, served: Mapping[Literal["accepted", "deferred"], Any], out: Path
) -> str:
    """Write every input of a run with at least two items: the candidate's answer, and what is done with it.

    Args:
        run: the run.
        statistic: what the confidence is by which it is served.
        served: the word for what is done, to a function from confidences, float64 [n_inputs], to bool [n_inputs].
        out: a .csv or .parquet file.

    Returns:
        What was written, in words.
    """
    ((word, rule),), name = served.items(), conformal.confidence_name(statistic)
    evidence, texts = run.evidence(), read_texts(run)
    observed = conformal.observe(evidence, statistic)
    rows = observed.defined.nonzero()[0].tolist()
    observed = observed.part(observed.defined)
    told: NDArray[Any] = rule(observed.confidence)
    found = zip(rows, told.tolist(), observed.confidence.tolist(), observed.flipped.tolist(), strict=True)
    listed = [
        {
            **{"input": (one := str(evidence.input_ids[row])), word: yes, name: sure, "changed": moved},
            "answer": str(evidence.item_ids[evidence.candidate_top.items[row, 0]]),
            "text": texts.inputs.get(one),
        }
        for row, yes, sure, moved in found
    ]
    kinds: Mapping[str, Any] = {word: "flag", name: "number", "changed": "flag"}
    keys = ("input", word, name, "answer", "changed", "text")
    write_table([Column("", itemgetter(key), kind=kinds.get(key, "words"), key=key) for key in keys], listed, out)
    return f"written: {out}, {len(told):,} inputs, of which {int(told.sum()):,} are {word}"
