"""Finished runs of FlashRAG, whose answers are there already: its intermediate_data.json as a record of ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from quantdrift.base.errors import DataError, QuantDriftError
from quantdrift.base.records import bytes_digest, problem_of, read_json
from quantdrift.features.rag.answers import Condition, RagRecord, holds_answer
from quantdrift.features.rag.questions import CONTROL, REFERENCE, Text, cleaned


class _Passage(BaseModel, extra="ignore"):
    id: str | int | None = None
    contents: Text = ""


class _Output(BaseModel, extra="ignore"):
    pred: Text
    retrieval_result: list[_Passage] | None = None


class _Item(BaseModel, extra="ignore"):
    """What FlashRAG keeps of a question."""

    id: Text | int | None = None
    question: Text
    golden_answers: list[Text] = Field(min_length=1)
    choices: list[str] = []
    output: _Output

    @property
    def passages(self) -> list[str] | None:
        """Texts of what was read; None where nothing was searched."""
        found = self.output.retrieval_result
        return None if found is None else [each.contents for each in found]


_ITEMS = TypeAdapter(list[_Item])


def read_flashrag(paths: Sequence[Path], control: Path | None = None) -> RagRecord:
    """The record of finished runs of FlashRAG on the same questions, the reference's first.

    Args:
        paths: intermediate_data.json of each.
        control: that of a run without passages, such as of FlashRAG's naive pipeline.

    Raises:
        DataError: a file is none of FlashRAG's, or the files ask different questions.
    """
    if len(paths) < 2:  # noqa: PLR2004 -- a reference and a candidate
        raise QuantDriftError("expected two files of FlashRAG or more: the reference's, then each candidate's")
    every = [_read_items(path) for path in (*paths, *([] if control is None else [control]))]
    asked = [(one.question, one.golden_answers) for one in every[0]]
    for path, items in zip((*paths, control), every, strict=False):
        if [(one.question, one.golden_answers) for one in items] != asked:
            raise DataError(
                f"expected the same questions and gold answers in all files; {path} has others than {paths[0]}"
            )
    names = _names(paths)
    conditions = [_of_items(name, items) for name, items in zip(names, every, strict=False)]
    return RagRecord(
        generator="FlashRAG's",
        kind="FlashRAG",
        data=paths[0].resolve().parent.name,
        n_passages=max((len(one.passages or ()) for one in every[0]), default=0),
        gold_by="answer text",
        ids=[str(number if one.id is None else one.id) for number, one in enumerate(every[0])],
        questions=[one.question for one in every[0]],
        golds=[one.golden_answers for one in every[0]],
        control=None if control is None else _of_items(CONTROL, every[-1]).model_copy(update={"passages": None}),
        reference=conditions[0].model_copy(update={"name": REFERENCE}),
        candidates=conditions[1:],
    )


def _names(paths: Sequence[Path]) -> list[str]:
    """FlashRAG gives every run a folder of its own."""
    names = [path.resolve().parent.name or path.stem for path in paths]
    return names if len({*names, CONTROL, REFERENCE}) == len(names) + 2 else [str(path) for path in paths]


def _read_items(path: Path) -> list[_Item]:
    try:
        items = _ITEMS.validate_python(read_json(path))
    except (OSError, ValueError) as error:  # pydantic's is a ValueError
        why = problem_of(error) if isinstance(error, ValidationError) else error
        raise DataError(
            f"{path} is no intermediate_data.json of FlashRAG with id, question, golden_answers and output.pred: {why}"
        ) from error
    if not items or any(one.choices for one in items):
        raise DataError(f"{path} holds no questions, or questions with choices; expected questions with short answers")
    return items


def _of_items(name: str, items: Sequence[_Item]) -> Condition:
    """What a run says; FlashRAG's corpora name passages as they like, so texts tell them apart."""
    read = [each for one in items if (each := one.passages) is not None]
    whole = len(read) == len(items)
    return Condition(
        name=name,
        answers=[cleaned(one.output.pred) for one in items],
        passages=[[bytes_digest(text.encode()) for text in each] for each in read] if whole else None,
        gold_in_context=[holds_answer(*one) for one in zip(read, (each.golden_answers for each in items), strict=True)]
        if whole
        else None,
    )
