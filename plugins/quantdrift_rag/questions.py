"""What a generator is asked: questions with gold answers, and the passages that finished runs found for them.

Runs are searches that `quantdrift run` measured; nothing is searched here.
"""

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
    read_json,
    read_lines,
    read_texts,
    validated,
)
from quantdrift_rag.answers import Condition, RagRecord, holds_answer

CONTROL, REFERENCE = "no passages", "full precision"
ANSWERS = "answers.jsonl"
"""Of gold answers beside the data, and of a generator's answers in the folder of a result."""
_LONGEST = 2_000
"""Characters of an answer that are kept."""
_NAMED = 4
"""Ids that an error names at most."""

Text = Annotated[str, Field(max_length=64 << 20)]
"""Of a file from anywhere; by the limit pydantic refuses halves of surrogate pairs, which UTF-8 cannot write."""


# --- gold answers ---------------------------------------------------------------------------------


class _Gold(BaseModel, extra="ignore", strict=True):
    """A question's gold answers: a line of a file; NQ-open calls them `answer`."""

    id: str | Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = Field(None, alias="_id")
    question: Text | None = None
    answers: list[Text] = Field(min_length=1, validation_alias=AliasChoices("answers", "answer"))


_EXPECTED = (
    '{"_id": "q1", "answers": ["..."]} or {"question": "...", "answers": ["..."]} a line, or a .json file in SQuAD\'s '
    "layout"
)


def read_answers(file: Path, questions: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The gold answers that a file has for questions: by their id, or else by what they ask.

    An id counts only where the file asks the same under it, or does not say what it asks. Case, spaces and a question
    mark at the end are passed over.

    Args:
        file: JSON lines, or JSON in SQuAD's layout.
        questions: id to text.

    Raises:
        DataError: the file cannot be read, or has answers for none of the questions.
    """
    if not file.is_file():
        raise DataError(f"{file} is no file; expected {_EXPECTED}")
    asked = {_asked(text): name for name, text in questions.items()}
    answers: dict[str, tuple[str, ...]] = {}
    n_lines = 0
    part, lines = ("question", _squad_lines(file)) if file.suffix == ".json" else ("line", read_lines(file))
    for number, line in lines:
        try:
            gold = validated(_Gold, line)
        except ValueError as error:
            raise DataError(f"{file}, {part} {number}: {error}; expected {_EXPECTED}") from error
        n_lines += 1
        name = str(gold.id)
        if gold.question is not None and _asked(gold.question) != _asked(questions.get(name, "")):
            name = asked.get(_asked(gold.question), "")
        if name in questions:
            answers[name] = tuple(dict.fromkeys((*answers.get(name, ()), *gold.answers)))
    if not answers:
        raise DataError(
            f"{file} has answers to {n_lines:,} questions, and none of the run's is among them; the run asks "
            f"{', '.join([*questions][:_NAMED])}, ... Expected {_EXPECTED}"
        )
    return answers


def _squad_lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The questions of a file in SQuAD's layout, numbered, as lines have them."""
    try:
        paragraphs = [paragraph for article in read_json(file)["data"] for paragraph in article["paragraphs"]]
        questions = [question for paragraph in paragraphs for question in paragraph["qas"]]
        for number, question in enumerate(questions, start=1):
            texts = [answer["text"] for answer in question["answers"]]
            yield number, {"_id": question["id"], "question": question["question"], "answers": texts}
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else error
        raise DataError(f"{file} is not in SQuAD's layout: {why}; expected {_EXPECTED}") from error


def _asked(question: str) -> str:
    return " ".join(question.lower().split()).rstrip(" ?")


# --- what is asked --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question with the passages to read, best first; without any it is asked by itself."""

    question: str
    passages: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What a language model is given."""
        ask = f"Question: {' '.join(self.question.split())}\nAnswer:"
        if not self.passages:
            return f"Answer the question with a few words.\n\n{ask}"
        read = "\n\n".join(f"Passage {n}: {' '.join(text.split())}" for n, text in enumerate(self.passages, start=1))
        return f"Read the passages and answer the question with a few words.\n\n{read}\n\n{ask}"


class Generator(Protocol):
    """What answers.

    Attributes:
        name: as results show it.
        kind: a generator, or an extractive reader.
        identity: all that decides its answers.
    """

    name: str
    kind: Any
    identity: str

    def answers(self, prompts: Sequence[Prompt]) -> Iterator[list[tuple[Prompt, str]]]:
        """Every prompt with its answer, a batch at a time, in any order."""

    def notes(self, prompts: Sequence[Prompt]) -> list[str]:
        """What to know of these prompts: one sentence each, without a full stop."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Questions:
    """Questions with gold answers, and what either arm of every run found for them.

    Attributes:
        about: the fields of their record that say neither who answers nor what.
        texts: passage id to text.
        conditions: those of their record, without answers yet; the reference's first.
    """

    about: Mapping[str, Any]
    texts: Mapping[str, str]
    conditions: Sequence[Condition]

    def answered_by(
        self, generator: Generator, kept: Path | None, progress: Progress, *, control: bool = True
    ) -> RagRecord:
        """The record of what a generator says, each prompt asked once; raises as `answer`.

        Without `control` nothing is asked without passages.
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
    """The questions that all runs searched for and that have gold answers.

    Args:
        runs: searches of one reference on the same data.
        answers: file of gold answers; by default answers.jsonl beside the data.
        data: the folder of the data, where it is not where the runs found it.
        n_passages: to read for each question.

    Raises:
        QuantDriftError: runs are no searches, or of different data or references; or the data were changed.
    """
    searches = [(run, _evidence_of(run, n_passages)) for run in runs]
    first, said = runs[0], runs[0].record["data"]
    for run in runs:
        if (other := run.record["data"].get("fingerprint")) != (mark := said.get("fingerprint")):
            raise RunError(f"expected runs on the same data; {first.path} has {mark} and {run.path} {other}")
    texts, path = read_texts(first, data=data), data or said.get("path")
    if not texts.items:
        raise DataError(
            f"the data of {first.path} are gone or changed ({path or said['name']}); name a folder that has them with "
            "--data"
        )
    beside = [Path(path or "", name) for name in (ANSWERS, f"{ANSWERS}.gz")] if path else []
    file = answers or next(filter(Path.is_file, beside), None)
    if file is None:
        raise DataError(f"{path or 'the task'} has no {ANSWERS}; name a file with --answers: {_EXPECTED}")
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
        raise RunError(f"{run.path} keeps {evidence.depth} ranks, of {n_passages} to read; run it with -k {n_passages}")
    return evidence


def _conditions(searches: Sequence[tuple[Run, Evidence]], ids: Sequence[str], n_passages: int) -> list[Condition]:
    """What the reference of all runs found for questions, and what each candidate did."""
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
                f"expected runs of one reference; those of {searches[0][0].path} and {run.path} find other passages. "
                "Give runs of one model"
            )
        name = spec.rpartition("@")[2] if specs.count(spec) == 1 else run.path.name
        if name in conditions:
            raise RunError(f"two runs are called {name}; give each scheme once")
        conditions[name] = Condition(name=name, spec=spec, passages=candidate)
    return list(conditions.values())


def _relevant(evidence: Evidence, ids: Sequence[str]) -> dict[str, frozenset[str]]:
    """The relevant passages of each question; none at all without labels."""
    if evidence.judgements is None:
        return {}
    relevant = {}
    for question, row in zip(ids, evidence.rows_of(ids).tolist(), strict=True):
        grades = evidence.judgements.of(row)
        relevant[question] = frozenset(str(evidence.item_ids[item]) for item, grade in grades.items() if grade > 0)
    return relevant if any(relevant.values()) else {}


# --- asking, each prompt once, and what a kill leaves ---------------------------------------------


def answer(prompts: Sequence[Prompt], generator: Generator, kept: Path | None, progress: Progress) -> dict[Prompt, str]:
    """The answer to every prompt; those in the file `kept` are not asked again, and each batch is added to it.

    Raises:
        RunError: the file holds something else, or cannot be written.
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
    """The first line of an answer, of a length that is stored, in letters that UTF-8 can write."""
    line = text.partition("\n")[0].strip()[:_LONGEST]
    return line.encode("utf-8", "replace").decode()


def _append(path: Path, lines: str) -> None:
    then = ". Free some space or choose another folder with --out"
    with in_one_line(f"answers were not kept in {path}", then, kind=RunError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())


_START = b'{"key": "'
"""What every line of a file of kept answers starts with."""


class _Kept(BaseModel, strict=True, extra="forbid"):
    key: str = Field(pattern="^[0-9a-f]{40}$")
    answer: str = Field(max_length=_LONGEST)


def _read_kept(path: Path) -> dict[str, str]:
    """The answers in a file; a last line that a kill cut short is cut off, and nothing else is."""
    try:
        content = path.read_bytes()
        *lines, half = content.split(b"\n")
        if not _START.startswith(half[: len(_START)]):
            lines.append(half)  # no answer of ours, so the file is refused
        kept = [validated(_Kept, line) for line in lines]
        if half:
            os.truncate(path, len(content) - len(half))
    except (ValueError, OSError) as error:
        raise RunError(
            f"{path} is not what quantdrift rag keeps of a generator's answers ({str(error).splitlines()[0]}); move it "
            "away, or choose another folder with --out"
        ) from error
    return {line.key: line.answer for line in kept}
