"""The command `reader`: answers of an extractive reader behind a search, which `quantdrift rag` then shows."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from quantdrift.base.errors import DataError
from quantdrift.base.progress import Silent, Terminal
from quantdrift.cli.options import argument, option, prints
from quantdrift.runs.folder import find_runs
from quantdrift.show.output import Output
from quantdrift_rag.answers import RECORD, RagRecord
from quantdrift_rag.questions import ANSWERS, Questions, read_questions


@prints("json")
def reader(
    *,
    runs: list[Path] = argument("RUN...: Run folders of searches, one a scheme, all of one reference."),
    model: str = option("--reader FOLDER: A model of transformers for question answering.", default=...),
    answers: Path | None = option("FILE: Gold answers, as quantdrift rag takes them."),
    data: Path | None = option("FOLDER: The data that the runs were made of, if they have moved."),
    passages: int = option("How many passages to read for each question.", default=5, min=1, max=100),
    batch_size: int = option("Passages per forward pass.", default=8, min=1),
    device: str | None = option("NAME: cpu, cuda, cuda:1 or mps."),
    out: Path = option("-o --out FOLDER: Where answers and result lie.", default=...),
    quiet: bool = option("-q --quiet: No progress bars.", default=False),
) -> Output:
    """Let an extractive reader, in place of a generator, mark an answer in the passages that finished runs found.

    It has no answer without passages, so there is no control; it is not asked what it was trained on.
    """
    from quantdrift_paper.reader import Reader  # noqa: PLC0415 -- torch takes seconds

    RagRecord.check_place(out / RECORD)
    questions = read_questions(find_runs(runs), answers=answers, data=data, n_passages=passages)
    loaded = Reader(model, batch_size=batch_size, device=device)
    progress = Silent() if quiet else Terminal()
    unseen = without(questions, loaded.trained_on)
    unseen.answered_by(loaded, out / ANSWERS, progress, control=False).write(out / RECORD)
    return Output(data={"path": str(out)}, next=[f"written: {out}", f"see it: quantdrift rag {shlex.quote(str(out))}"])


def without(questions: Questions, seen: Collection[str]) -> Questions:
    """Leave out the questions that a reader was trained on; raises DataError where none is left."""
    ids = questions.about["ids"]
    rows = [row for row, name in enumerate(ids) if name not in seen]
    if not rows:
        raise DataError(f"the reader was trained on all {len(ids):,} questions; train one with a smaller --share")
    if len(rows) == len(ids):
        return questions
    note = f"{len(ids) - len(rows):,} of {len(ids):,} questions are not asked, as the reader was trained on them"
    kept = {name: [questions.about[name][row] for row in rows] for name in ("ids", "questions", "golds")}
    conditions = []
    for condition in questions.conditions:
        sides = {name: getattr(condition, name) or [] for name in ("passages", "gold_in_context")}
        part = {name: [side[row] for row in rows] for name, side in sides.items()}
        conditions.append(condition.model_copy(update=part))
    about = {**questions.about, **kept, "notes": [*questions.about["notes"], note]}
    return replace(questions, about=about, conditions=conditions)
