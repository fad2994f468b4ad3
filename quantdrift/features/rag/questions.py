"""What a generator is asked: questions with gold answers, and the passages that finished runs found for them.

Runs are searches that `quantdrift run` measured; nothing is searched here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from quantdrift.base.errors import DataError, QuantDriftError, RunError
from quantdrift.base.progress import Progress
from quantdrift.base.records import MAX_JSON, bytes_digest, parse_json, problem_of, read_json, refusals
from quantdrift.base.text import some
from quantdrift.data.retrieval import excerpt, plain_or_zipped, read_lines
from quantdrift.evidence.record import Evidence
from quantdrift.features.rag.answers import Condition, RagRecord, holds_answer
from quantdrift.finished.texts import read_texts
from quantdrift.runs.folder import Run
from quantdrift.runs.identity import classifies

CONTROL, REFERENCE = "no passages", "full precision"
ANSWERS = "answers.jsonl"
"""Of gold answers beside the data, and of a generator's answers in the folder of a result."""
_LONGEST = 2_000
"""Characters of an answer that are kept."""


def _writable(text: str) -> str:
    if text != text.encode("utf-8", "replace").decode():
        raise ValueError("half of a surrogate pair, which UTF-8 cannot write")
    return text


Text = Annotated[str, AfterValidator(_writable)]
"""Of a file from anywhere; we can write it again."""


# --- gold answers ---------------------------------------------------------------------------------


class _Gold(BaseModel, extra="ignore", strict=True, populate_by_name=True):
    """A question's gold answers, by the names that files have for them."""

    id: str | int | None = None
    question: Text | None = None
    answers: list[Text] = Field(min_length=1)


_EXPECTED = (
    '{"_id": "q1", "answers": ["..."]} a line (id, question, answer and golden_answers are understood too), or a file '
    "in SQuAD's layout"
)
_NAMES = {"_id": "id", "query_id": "id", "query": "question", "answer": "answers", "golden_answers": "answers"}


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
    asked = {_asked(text): name for name, text in questions.items()}
    found: dict[str, tuple[str, ...]] = {}
    n_lines = 0
    for where, line in _gold_lines(file):
        said = {_NAMES.get(key, key): value for key, value in line.items()}
        if isinstance(said.get("answers"), str):
            said["answers"] = [said["answers"]]
        try:
            gold = _Gold.model_validate(said)
        except ValidationError as error:
            raise DataError(f"{where}: {problem_of(error)}; expected {_EXPECTED}") from error
        n_lines += 1
        name = str(gold.id)
        if gold.question is not None and _asked(gold.question) != _asked(questions.get(name, "")):
            name = asked.get(_asked(gold.question), "")
        if name in questions:
            found[name] = tuple(dict.fromkeys((*found.get(name, ()), *gold.answers)))
    if not found:
        raise DataError(
            f"{file} has answers to {n_lines:,} questions, and none of the run's is among them; the run asks "
            f"{some(questions)}. Expected {_EXPECTED}"
        )
    return found


def _gold_lines(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if file.suffix == ".json":
        try:
            whole = read_json(file)
            if isinstance(whole, dict):  # SQuAD: data, paragraphs, qas, answers
                paragraphs = [part for article in whole["data"] for part in article["paragraphs"]]
                asked = [one for part in paragraphs for one in part["qas"]]
                whole = [{**one, "answers": [each["text"] for each in one["answers"]]} for one in asked]
            lines = [(f"{file}, question {number}", one) for number, one in enumerate(whole, start=1)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else error
            raise DataError(f"{file} cannot be read: {why}; expected {_EXPECTED}") from error
    else:
        lines = [(where, _json(line, where)) for where, line in _lines(file)]
    for where, one in lines:
        if not isinstance(one, dict):
            raise DataError(f"{where}: expected {_EXPECTED}; got {excerpt(one)}")
        yield where, one


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    try:
        if not file.is_file() or file.stat().st_size > MAX_JSON:
            raise DataError(f"{file} is no file, or larger than {MAX_JSON:,} bytes")
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from error
    for number, line in read_lines(file):
        yield f"{file}, line {number}", line


def _json(line: str, where: str) -> Any:
    try:
        return parse_json(line)
    except ValueError as error:
        raise DataError(f"{where}: expected JSON; {error}") from error


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
        read = "\n\n".join(f"Passage {n}: {' '.join(each.split())}" for n, each in enumerate(self.passages, start=1))
        return f"Read the passages and answer the question with a few words.\n\n{read}\n\n{ask}"


class Generator(Protocol):
    """What answers.

    Attributes:
        name: as results show it.
        kind: a generator, or an extractive reader.
        identity: all that decides its answers.
        alone: whether it can answer without passages.
        trained_on: ids of questions that it may not be asked.
    """

    name: str
    kind: Any
    identity: str
    alone: bool
    trained_on: frozenset[str]

    def answers(self, prompts: Sequence[Prompt]) -> Iterator[list[tuple[Prompt, str]]]:
        """Every prompt with its answer, a batch at a time, in any order."""
        ...

    def notes(self, prompts: Sequence[Prompt]) -> list[str]:
        """What to know of these prompts: one sentence each, without a full stop."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Questions:
    """Questions with gold answers, and what either arm of every run found for them.

    Attributes:
        data: the name of the data.
        n_passages: read for each question, at most.
        asked: question id to text.
        golds: question id to its gold answers.
        relevant: question id to the ids of its relevant passages; empty without labels.
        texts: passage id to text.
        found: name of a condition to question id to passages, best first; the reference comes first.
        specs: name of a condition to the spec of its run.
        notes: what to know; one sentence each, without a full stop.
    """

    data: str
    n_passages: int
    asked: Mapping[str, str]
    golds: Mapping[str, Sequence[str]]
    relevant: Mapping[str, frozenset[str]]
    texts: Mapping[str, str]
    found: Mapping[str, Mapping[str, Sequence[str]]]
    specs: Mapping[str, str]
    notes: Sequence[str] = ()

    def part(self, *, limit: int | None = None, left_out: Collection[str] = ()) -> Questions:
        """The first questions, without those that may not be asked; raises DataError where none is left."""
        asked = {one: text for one, text in self.asked.items() if one not in left_out}
        if not asked:
            raise DataError(
                f"the reader was trained on all {len(self.asked):,} questions; train one with a smaller --share"
            )
        hidden = len(self.asked) - len(asked)
        told = f"{hidden:,} of {len(self.asked):,} questions are not asked, as the reader was trained on them"
        return replace(self, asked=dict(islice(asked.items(), limit)), notes=[*self.notes, *([told] if hidden else [])])

    def prompt(self, name: str, question: str) -> Prompt:
        """What is asked in a condition."""
        found = self.found[name][question] if name in self.found else ()
        return Prompt(self.asked[question], tuple(self.texts[each] for each in found))

    def answered_by(self, generator: Generator, kept: Path | None, progress: Progress) -> RagRecord:
        """The record of what a generator says, each prompt asked once; raises as `answer`."""
        names = [*([CONTROL] if generator.alone else []), *self.found]
        prompts = {name: [self.prompt(name, one) for one in self.asked] for name in names}
        every = list(dict.fromkeys(prompt for part in prompts.values() for prompt in part))
        said = answer(every, generator, kept, progress)
        conditions = {name: self._condition(name, [said[each] for each in prompts[name]]) for name in names}
        return RagRecord(
            generator=generator.name,
            kind=generator.kind,
            data=self.data,
            n_passages=self.n_passages,
            gold_by="labels" if self.relevant else "answer text",
            ids=list(self.asked),
            questions=list(self.asked.values()),
            golds=[list(self.golds[one]) for one in self.asked],
            control=conditions.get(CONTROL),
            reference=conditions[REFERENCE],
            candidates=[conditions[name] for name in names if name not in {CONTROL, REFERENCE}],
            notes=[*self.notes, *generator.notes(every)],
        )

    def _condition(self, name: str, answers: list[str]) -> Condition:
        if name == CONTROL:
            return Condition(name=name, answers=answers)
        found = [list(self.found[name][one]) for one in self.asked]
        rows = list(zip(self.asked, found, strict=True))
        if self.relevant:
            gold = [not self.relevant[one].isdisjoint(ids) for one, ids in rows]
        else:
            gold = [holds_answer([self.texts[each] for each in ids], self.golds[one]) for one, ids in rows]
        return Condition(name=name, spec=self.specs.get(name), answers=answers, passages=found, gold_in_context=gold)


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
    every = [(run, _evidence_of(run, n_passages)) for run in runs]
    first = runs[0]
    for run in runs[1:]:
        said = [one.record["data"].get("fingerprint") for one in (first, run)]
        if said[0] != said[1]:
            raise RunError(f"expected runs on the same data; {first.path} has {said[0]} and {run.path} {said[1]}")
    texts, path = read_texts(first, data=data), data or first.record["data"].get("path")
    if not texts.items:
        raise DataError(
            f"the data of {first.path} are gone or changed ({path or first.record['data']['name']}); name a folder "
            "that has them with --data"
        )
    file = answers or (plain_or_zipped(Path(path), ANSWERS) if path else None)
    if file is None:
        raise DataError(f"{path or 'the task'} has no {ANSWERS}; name a file with --answers: {_EXPECTED}")
    golds = read_answers(file, texts.inputs)
    shared = set.intersection(*(set(map(str, evidence.input_ids)) for _, evidence in every))
    ids = [one for one in texts.inputs if one in shared]
    wanted = [one for one in ids if one in golds]
    if not wanted:
        raise DataError(f"none of the {len(ids):,} questions that all runs searched for has an answer in {file}")
    found, specs = _found(every, wanted, n_passages)
    passages = dict.fromkeys(each for part in found.values() for names in part.values() for each in names)
    if unknown := passages.keys() - texts.items.keys():
        raise DataError(f"{len(unknown):,} passages that the runs found are not in the data: {some(sorted(unknown))}")
    lacking = {"are not in all runs": len(texts.inputs) - len(ids), "have no gold answer": len(ids) - len(wanted)}
    return Questions(
        data=str(first.record["data"]["name"]),
        n_passages=n_passages,
        asked={one: texts.inputs[one] for one in wanted},
        golds={one: golds[one] for one in wanted},
        relevant=_relevant(every[0][1], wanted),
        texts={each: texts.items[each] for each in passages},
        found=found,
        specs=specs,
        notes=[f"{n:,} of {len(texts.inputs):,} questions {why} and are not asked" for why, n in lacking.items() if n],
    )


def _evidence_of(run: Run, n_passages: int) -> Evidence:
    evidence = run.evidence()
    if classifies(run.record) or evidence.deltas == "none":
        raise RunError(f"{run.path} is no search: expected a run that found passages for questions")
    if evidence.depth < n_passages and int(evidence.n_items.max(initial=0)) > evidence.depth:
        raise RunError(f"{run.path} keeps {evidence.depth} ranks, of {n_passages} to read; run it with -k {n_passages}")
    return evidence


def _found(
    every: Sequence[tuple[Run, Evidence]], wanted: Sequence[str], n_passages: int
) -> tuple[dict[str, Mapping[str, Sequence[str]]], dict[str, str]]:
    """What each condition found, and the spec of its run; the reference's is that of all runs."""
    found: dict[str, Mapping[str, Sequence[str]]] = {}
    specs: dict[str, str] = {}
    for run, evidence in every:
        row = {str(name): number for number, name in enumerate(evidence.input_ids)}
        names = [str(name) for name in evidence.item_ids]
        arms: list[Mapping[str, Sequence[str]]] = [
            {one: [names[item] for item in top.items[row[one], :n_passages].tolist() if item >= 0] for one in wanted}
            for top in (evidence.reference_top, evidence.candidate_top)
        ]
        if found.setdefault(REFERENCE, arms[0]) != arms[0]:
            raise RunError(
                f"expected runs of one reference; those of {every[0][0].path} and {run.path} find other passages. "
                "Give runs of one model"
            )
        spec = str(run.record["spec"])
        once = sum(spec == str(one.record["spec"]) for one, _ in every) == 1
        name = spec.rpartition("@")[2] if once else run.path.name
        if name in found:
            raise RunError(f"two runs are called {name}; give each scheme once")
        found[name], specs[name] = arms[1], spec
    return found, specs


def _relevant(evidence: Evidence, wanted: Sequence[str]) -> dict[str, frozenset[str]]:
    if evidence.judgements is None:
        return {}
    row, names = {str(name): n for n, name in enumerate(evidence.input_ids)}, evidence.item_ids
    labels = {one: evidence.judgements.of(row[one]) for one in wanted}
    found = {one: frozenset(str(names[i]) for i, grade in own.items() if grade > 0) for one, own in labels.items()}
    return found if any(found.values()) else {}


# --- asking, each prompt once, and what a kill leaves ---------------------------------------------


def answer(prompts: Sequence[Prompt], generator: Generator, kept: Path | None, progress: Progress) -> dict[Prompt, str]:
    """The answer to every prompt; those in the file `kept` are not asked again, and each batch is added to it.

    Raises:
        RunError: the file holds something else, or cannot be written.
    """
    keys = {each: bytes_digest(json.dumps([generator.identity, each.text]).encode()) for each in prompts}
    known = {} if kept is None else _read_kept(kept)
    said = {each: known[key] for each, key in keys.items() if key in known}
    left = [each for each in prompts if each not in said]
    with progress.stage("answering", len(prompts)) as tell:
        tell(len(said))
        for batch in generator.answers(left) if left else ():
            own = {each: cleaned(text) for each, text in batch}
            said |= own
            if kept is not None:
                lines = [json.dumps({"key": keys[each], "answer": text}) + "\n" for each, text in own.items()]
                _append(kept, "".join(lines))
            tell(len(own))
    if missing := len(prompts) - len(said):
        raise QuantDriftError(f"{generator.name} gave no answer to {missing:,} of {len(prompts):,} prompts")
    return said


def cleaned(text: str) -> str:
    """The first line of an answer, of a length that is stored, in letters that UTF-8 can write."""
    line = text.partition("\n")[0].strip()[:_LONGEST]
    return line.encode("utf-8", "replace").decode()


def _append(path: Path, lines: str) -> None:
    with refusals(f"answers were not kept in {path}", ". Free some space or choose another folder with --out"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())


class _Kept(BaseModel, strict=True, extra="forbid"):
    key: str = Field(pattern="^[0-9a-f]{40}$")
    answer: str = Field(max_length=_LONGEST)


def _read_kept(path: Path) -> dict[str, str]:
    """The answers in a file; a last line that a kill cut short is cut off."""
    if not path.exists():
        return {}
    found = {}
    try:
        _drop_half_line(path)
        for where, line in _lines(path):
            kept = _Kept.model_validate(_json(line, where))
            found[kept.key] = kept.answer
    except (DataError, ValidationError, OSError) as error:
        raise RunError(
            f"{path} is not what quantdrift rag keeps of a generator's answers ({str(error).splitlines()[0]}); move it "
            "away, or choose another folder with --out"
        ) from error
    return found


def _drop_half_line(path: Path) -> None:
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - 8 * _LONGEST)
        file.seek(start)
        tail = file.read()
        if tail and not tail.endswith(b"\n"):
            file.truncate(start + tail.rfind(b"\n") + 1)
