"""The prompts of a generator: questions with gold answers, and the passages that finished runs found for them."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import AliasChoices, BaseModel, Field

from quantdrift.parts import (
    DataError,
    Evidence,
    Progress,
    QuantDriftError,
    Run,
    RunError,
    in_one_line,
    read_lines,
    read_texts,
    validated,
)
from quantdrift_rag.answers import Condition, RagRecord, holds_answer

CONTROL, REFERENCE = "no passages", "full precision"
ANSWERS = "answers.jsonl"
"""File of gold answers in the folder of the data, and of a generator's answers in the folder of a result."""
_LONGEST = 2_000
"""Characters of a saved answer at most."""
_NAMED = 4
"""Ids that an error names at most."""

Text = Annotated[str, Field(max_length=64 << 20)]
"""A text of a file; with a limit pydantic also refuses half surrogate pairs, which have no UTF-8."""


# --- gold answers ---------------------------------------------------------------------------------


class _Gold(BaseModel, extra="ignore", strict=True):
    """A line of a file: the gold answers of a question, which NQ-open calls `answer`."""

    id: str | Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = Field(None, alias="_id")
    question: Text | None = None
    answers: list[Text] = Field(min_length=1, validation_alias=AliasChoices("answers", "answer"))


_EXPECTED = '{"_id": "q1", "answers": ["..."]} or {"question": "...", "answers": ["..."]} a line'


def read_answers(file: Path, questions: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Read the gold answers of questions, which are matched by id, or else by text.

    An id counts only if the file has the same question under it, or no question. Texts are compared without case,
    spaces and a question mark at the end.

    Args:
        file: JSON lines.
        questions: id to text.

    Raises:
        DataError: the file cannot be read, or has no answer to any of the questions.
    """
    if not file.is_file():
        raise DataError(f"{file} is no file; expected {_EXPECTED}")
    asked = {_asked(text): name for name, text in questions.items()}
    answers: dict[str, tuple[str, ...]] = {}
    n_lines = 0
    for number, line in read_lines(file):
        try:
            gold = validated(_Gold, line)
        except ValueError as error:
            raise DataError(f"{file}, line {number}: {error}; expected {_EXPECTED}") from error
        n_lines += 1
        name = str(gold.id)
        if gold.question is not None and _asked(gold.question) != _asked(questions.get(name, "")):
            name = asked.get(_asked(gold.question), "")
        if name in questions:
            answers[name] = tuple(dict.fromkeys((*answers.get(name, ()), *gold.answers)))
    if not answers:
        raise DataError(
            f"{file} has answers to {n_lines:,} questions, but to none of the run's, which are "
            f"{', '.join([*questions][:_NAMED])}, ... Expected {_EXPECTED}"
        )
    return answers


def _asked(question: str) -> str:
    return " ".join(question.lower().split()).rstrip(" ?")


# --- prompts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question with its passages, best first, or without any."""

    question: str
    passages: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The prompt as text."""
        ask = f"Question: {' '.join(self.question.split())}\nAnswer:"
        if not self.passages:
            return f"Answer the question with a few words.\n\n{ask}"
        read = "\n\n".join(f"Passage {n}: {' '.join(text.split())}" for n, text in enumerate(self.passages, start=1))
        return f"Read the passages and answer the question with a few words.\n\n{read}\n\n{ask}"


class Generator(Protocol):
    """A generator of answers.

    Attributes:
        name: name in results.
        kind: a generator, or an extractive reader.
        identity: everything that its answers depend on.
    """

    name: str
    kind: Any
    identity: str

    def answers(self, prompts: Sequence[Prompt]) -> Iterator[list[tuple[Prompt, str]]]:
        """Yield prompts with their answers in batches, in any order."""

    def notes(self, prompts: Sequence[Prompt]) -> list[str]:
        """Remarks on these prompts, one sentence each, without a full stop."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Questions:
    """Questions with gold answers, and the passages of both arms of every run.

    Attributes:
        about: the fields of the record that do not depend on the generator.
        texts: passage id to text.
        conditions: the conditions of the record, without answers; that of the reference is first.
    """

    about: Mapping[str, Any]
    texts: Mapping[str, str]
    conditions: Sequence[Condition]

    def answered_by(
        self, generator: Generator, kept: Path | None, progress: Progress, *, control: bool = True
    ) -> RagRecord:
        """Ask a generator, each prompt once, and return the record; raises as `answer`.

        With `control` every question is also asked without passages.
        """
        conditions = [*([Condition(name=CONTROL)] if control else []), *self.conditions]
        prompts = [self._prompts(condition) for condition in conditions]
        every = list(dict.fromkeys(prompt for part in prompts for prompt in part))
        said = answer(every, generator, kept, progress)
        answered = [
            condition.model_copy(update={"answers": [said[prompt] for prompt in part]})
            for condition, part in zip(conditions, prompts, strict=True)
        ]
        notes = [*self.about["notes"], *generator.notes(every)]
        return RagRecord(
            **{**self.about, "notes": notes},
            generator=generator.name,
            kind=generator.kind,
            control=answered.pop(0) if control else None,
            reference=answered[0],
            candidates=answered[1:],
        )

    def _prompts(self, condition: Condition) -> list[Prompt]:
        questions: Sequence[str] = self.about["questions"]
        passages = condition.passages or [[]] * len(questions)
        return [
            Prompt(question, tuple(self.texts[name] for name in names))
            for question, names in zip(questions, passages, strict=True)
        ]


def read_questions(runs: Sequence[Run], *, answers: Path | None, data: Path | None, n_passages: int) -> Questions:
    """Read the questions of all runs that have gold answers.

    Args:
        runs: searches of one reference on the same data.
        answers: file of gold answers; by default answers.jsonl in the folder of the data.
        data: the folder of the data, if it has moved.
        n_passages: passages for each question.

    Raises:
        QuantDriftError: a run is no search, runs differ in data or reference, or the data have changed.
    """
    searches = [(run, _evidence_of(run, n_passages)) for run in runs]
    first, said = runs[0], runs[0].record["data"]
    for run in runs:
        if (other := run.record["data"].get("fingerprint")) != (mark := said.get("fingerprint")):
            raise RunError(f"expected runs on the same data; {first.path} has {mark} and {run.path} {other}")
    texts, path = read_texts(first, data=data), data or said.get("path")
    if not texts.items:
        raise DataError(
            f"the data of {first.path} are missing or changed ({path or said['name']}); give their folder with --data"
        )
    beside = [Path(path or "", name) for name in (ANSWERS, f"{ANSWERS}.gz")] if path else []
    file = answers or next(filter(Path.is_file, beside), None)
    if file is None:
        raise DataError(f"{path or 'the task'} has no {ANSWERS}; give a file with --answers: {_EXPECTED}")
    golds = read_answers(file, texts.inputs)
    searched = set.intersection(*(set(map(str, evidence.input_ids)) for _, evidence in searches))
    shared = [question for question in texts.inputs if question in searched]
    ids = [question for question in shared if question in golds]
    if not ids:
        raise DataError(f"none of the {len(shared):,} questions that all runs searched for has an answer in {file}")
    lacking = {"are not in all runs": len(texts.inputs) - len(shared), "have no gold answer": len(shared) - len(ids)}
    relevant = _relevant(searches[0][1], ids)
    conditions = _conditions(searches, ids, n_passages)
    passages = {name for condition in conditions for names in condition.passages or () for name in names}
    if unknown := passages - texts.items.keys():
        few = ", ".join(sorted(unknown)[:_NAMED])
        raise DataError(f"{len(unknown):,} passages that the runs found are not in the data, such as {few}")

    def has_gold(question: str, names: Sequence[str]) -> bool:
        if relevant:
            return not relevant[question].isdisjoint(names)
        return holds_answer([texts.items[name] for name in names], golds[question])

    about = {
        "data": str(said["name"]),
        "n_passages": n_passages,
        "gold_by": "labels" if relevant else "answer text",
        "ids": ids,
        "questions": [texts.inputs[question] for question in ids],
        "golds": [list(golds[question]) for question in ids],
        "notes": [
            f"{n:,} of {len(texts.inputs):,} questions {why} and are not asked" for why, n in lacking.items() if n
        ],
    }
    conditions = [
        condition.model_copy(update={"gold_in_context": [*map(has_gold, ids, condition.passages or ())]})
        for condition in conditions
    ]
    return Questions(about=about, texts=texts.items, conditions=conditions)


def _evidence_of(run: Run, n_passages: int) -> Evidence:
    evidence = run.evidence()
    if run.record["data"].get("kind") == "classification" or evidence.deltas == "none":
        raise RunError(f"{run.path} is no search: expected a run that found passages for questions")
    if evidence.depth < n_passages and int(evidence.n_items.max(initial=0)) > evidence.depth:
        raise RunError(f"{run.path} has {evidence.depth} ranks, not {n_passages}; measure again with -k {n_passages}")
    return evidence


def _conditions(searches: Sequence[tuple[Run, Evidence]], ids: Sequence[str], n_passages: int) -> list[Condition]:
    """The conditions with the passages of the reference and of each candidate."""
    conditions: dict[str, Condition] = {}
    specs = [str(run.record["spec"]) for run, _ in searches]
    for (run, evidence), spec in zip(searches, specs, strict=True):
        rows = evidence.rows_of(ids)
        reference, candidate = (
            [[str(evidence.item_ids[item]) for item in ranked if item >= 0] for ranked in top.items[rows, :n_passages]]
            for top in (evidence.reference_top, evidence.candidate_top)
        )
        if conditions.setdefault(REFERENCE, Condition(name=REFERENCE, passages=reference)).passages != reference:
            raise RunError(
                f"expected runs of one reference; those of {searches[0][0].path} and {run.path} found other passages"
            )
        name = spec.rpartition("@")[2] if specs.count(spec) == 1 else run.path.name
        if name in conditions:
            raise RunError(f"two runs are called {name}; give each scheme once")
        conditions[name] = Condition(name=name, spec=spec, passages=candidate)
    return list(conditions.values())


def _relevant(evidence: Evidence, ids: Sequence[str]) -> dict[str, frozenset[str]]:
    """The relevant passages of each question; empty without labels."""
    if evidence.judgements is None:
        return {}
    relevant = {}
    for question, row in zip(ids, evidence.rows_of(ids).tolist(), strict=True):
        grades = evidence.judgements.of(row)
        relevant[question] = frozenset(str(evidence.item_ids[item]) for item, grade in grades.items() if grade > 0)
    return relevant if any(relevant.values()) else {}


# --- answers, which are saved as they come --------------------------------------------------------


def answer(prompts: Sequence[Prompt], generator: Generator, kept: Path | None, progress: Progress) -> dict[Prompt, str]:
    """Answer every prompt; answers in the file `kept` are reused, and each batch is added to it.

    Raises:
        RunError: the file contains something else, or cannot be written.
    """
    keys = {prompt: _key(generator, prompt) for prompt in prompts}
    before = {} if kept is None or not kept.exists() else _read_kept(kept)
    said = {prompt: before[key] for prompt, key in keys.items() if key in before}
    left = [prompt for prompt in prompts if prompt not in said]
    with progress.stage("answering", len(prompts)) as tell:
        tell(len(said))
        for batch in generator.answers(left) if left else ():
            answers = {prompt: cleaned(text) for prompt, text in batch}
            said |= answers
            if kept is not None:
                lines = [json.dumps({"key": keys[prompt], "answer": text}) + "\n" for prompt, text in answers.items()]
                _append(kept, "".join(lines))
            tell(len(answers))
    if missing := len(prompts) - len(said):
        raise QuantDriftError(f"{generator.name} gave no answer to {missing:,} of {len(prompts):,} prompts")
    return said


def _key(generator: Generator, prompt: Prompt) -> str:
    said = json.dumps([generator.identity, prompt.text]).encode()
    return hashlib.blake2b(said, digest_size=20).hexdigest()


def cleaned(text: str) -> str:
    """The first line of an answer, shortened, in characters that have UTF-8."""
    line = text.partition("\n")[0].strip()[:_LONGEST]
    return line.encode("utf-8", "replace").decode()


def _append(path: Path, lines: str) -> None:
    then = ". Free some space or choose another folder with --out"
    with in_one_line(f"answers were not saved in {path}", then, kind=RunError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())


_START = b'{"key": "'
"""The beginning of every line of a file of saved answers."""


class _Kept(BaseModel, strict=True, extra="forbid"):
    key: str = Field(pattern="^[0-9a-f]{40}$")
    answer: str = Field(max_length=_LONGEST)


def _read_kept(path: Path) -> dict[str, str]:
    """Read the answers in a file, and remove a last line that was cut short by a kill."""
    try:
        content = path.read_bytes()
        *lines, half = content.split(b"\n")
        if not _START.startswith(half[: len(_START)]):
            lines.append(half)  # not a line of ours, so that the file is refused
        kept = [validated(_Kept, line) for line in lines]
        if half:
            os.truncate(path, len(content) - len(half))
    except (ValueError, OSError) as error:
        raise RunError(
            f"{path} is not a file of answers by quantdrift rag ({str(error).splitlines()[0]}); move it away, or "
            "choose another folder with --out"
        ) from error
    return {line.key: line.answer for line in kept}
