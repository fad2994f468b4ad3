"""Finished runs of FlashRAG, whose answers are there already: its intermediate_data.json as a record of ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from quantdrift.base.errors import DataError, QuantDriftError
from quantdrift.base.records import bytes_digest, problem_of, read_json
from quantdrift.features.rag.answers import Condition, RagRecord, holds_answer
from quantdrift.features.rag.questions import CONTROL, REFERENCE, Text, cleaned


class _Passage(BaseModel, extra="ignore"):
    contents: Text = ""


class _Output(BaseModel, extra="ignore"):
    pred: Text
    retrieval_result: list[_Passage] | None = None


class _Item(BaseModel, extra="ignore"):
    """A question as FlashRAG keeps it, without choices: with those, a pred may be a letter, which is no answer."""

    id: Text | int | None = None
    question: Text
    golden_answers: list[Text] = Field(min_length=1)
    choices: list[str] = Field(default_factory=list, max_length=0)
    output: _Output


_ITEMS = TypeAdapter(Annotated[list[_Item], Field(min_length=1)])
_EXPECTED = (
    '[{"id": "test_0", "question": "...", "golden_answers": ["..."], "output": {"pred": "...", "retrieval_result": '
    '[{"contents": "..."}]}}, ...], without choices'
)


def read_flashrag(paths: Sequence[Path], control: Path | None = None) -> RagRecord:
    """The record of finished runs of FlashRAG on the same questions, the reference's first.

    Args:
        paths: intermediate_data.json of each run.
        control: intermediate_data.json of a run without passages, as FlashRAG's naive pipeline makes it.

    Raises:
        DataError: a file is none of FlashRAG's, or the files ask different questions.
    """
    if len(paths) < 2:  # noqa: PLR2004 -- a reference and a candidate
        raise QuantDriftError("expected two files of FlashRAG or more: the reference's, then each candidate's")
    runs = {path: _read_items(path) for path in (*paths, *([] if control is None else [control]))}
    first = runs[paths[0]]
    asked = [(item.question, item.golden_answers) for item in first]
    for path, items in runs.items():
        if [(item.question, item.golden_answers) for item in items] != asked:
            raise DataError(
                f"expected the same questions and gold answers in all files; {path} has others than {paths[0]}"
            )
    names = [path.resolve().parent.name for path in paths[1:]]  # FlashRAG gives every run a folder of its own
    if len({*names, CONTROL, REFERENCE}) < len(names) + 2:
        names = [str(path) for path in paths[1:]]
    reference, *candidates = (
        _of_items(name, runs[path]) for name, path in zip([REFERENCE, *names], paths, strict=True)
    )
    without = None if control is None else Condition(name=CONTROL, answers=_answers(runs[control]))
    return RagRecord(
        generator="FlashRAG's",
        kind="FlashRAG",
        data=paths[0].resolve().parent.name,
        n_passages=max(len(item.output.retrieval_result or ()) for item in first),
        gold_by="answer text",
        ids=[str(number if item.id is None else item.id) for number, item in enumerate(first)],
        questions=[item.question for item in first],
        golds=[item.golden_answers for item in first],
        control=without,
        reference=reference,
        candidates=candidates,
    )


def _read_items(path: Path) -> list[_Item]:
    try:
        return _ITEMS.validate_python(read_json(path))
    except (OSError, ValueError) as error:  # pydantic's is a ValueError
        why = problem_of(error) if isinstance(error, ValidationError) else error
        raise DataError(f"{path} is no intermediate_data.json of FlashRAG: {why}; expected {_EXPECTED}") from error


def _answers(items: Sequence[_Item]) -> list[str]:
    return [cleaned(item.output.pred) for item in items]


def _of_items(name: str, items: Sequence[_Item]) -> Condition:
    """Read a run as a condition; digests of texts tell passages apart, whatever FlashRAG's corpora name them."""
    answers, passages, gold_in_context = _answers(items), [], []
    for item in items:
        if item.output.retrieval_result is None:
            return Condition(name=name, answers=answers)
        texts = [passage.contents for passage in item.output.retrieval_result]
        passages.append([bytes_digest(text.encode()) for text in texts])
        gold_in_context.append(holds_answer(texts, item.golden_answers))
    return Condition(name=name, answers=answers, passages=passages, gold_in_context=gold_in_context)
