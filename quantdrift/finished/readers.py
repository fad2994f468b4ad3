"""Which format a finished run has: told by its content, not by its name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from quantdrift.datasets.retrieval import excerpt, some
from quantdrift.datasets.retrieval import read_qrels as read_lines_of_qrels
from quantdrift.errors import DataError, RunError, UnknownNameError
from quantdrift.evidence import Evidence
from quantdrift.finished.contents import (
    FORMATS,
    Arm,
    FinishedRun,
    Format,
    Labelled,
    Part,
    Ranked,
    digest,
    number,
    parse_json,
    read_text,
)
from quantdrift.finished.lm_eval import is_sample, read_lm_eval, sample_files
from quantdrift.runs import EVIDENCE, RECORD, Run, read_run

# --- Rankings as JSON: query to document to score, as beir's search returns them ------------------

_MEANS = frozenset({"ndcg", "map", "recall", "precision"})


def read_json_rankings(path: Path) -> FinishedRun:
    """Read rankings that were written as JSON, plain or gzipped.

    Raises:
        DataError: it is not JSON, holds other things than rankings, or means only.
    """
    text = read_text(path)
    content = parse_json(text, path)
    if means_only(content):
        raise DataError(
            f"{path} holds the mean scores that beir's save_results writes, not the ranking of "
            "every query. Save what the search returned: beir.util.save_runfile(FILE, results), "
            "or json.dump(results, file)"
        )
    return FinishedRun(
        path=path,
        format="json",
        name=path.name,
        digest=digest(text),
        parts={"": Ranked(rankings=as_rankings(content, str(path)))},
    )


def is_rankings(content: Any) -> bool:
    """Whether a JSON value is query to document to score, as far as its first list tells."""
    if not isinstance(content, dict) or not content:
        return False
    if not all(isinstance(own, dict) for own in content.values()):
        return False
    first: dict[str, Any] = next((own for own in content.values() if own), {})
    return all(number(score) for score in first.values())


def means_only(content: Any) -> bool:
    """Whether it is a file of beir's save_results."""
    return isinstance(content, dict) and content.keys() >= _MEANS


def as_rankings(content: Any, where: str) -> dict[str, dict[str, float]]:
    """Rankings out of a JSON value.

    Args:
        content: what is expected to be query to document to score.
        where: file and place, for the message.

    Raises:
        DataError: it is something else.
    """
    if not isinstance(content, dict) or not content:
        raise DataError(f"{where}: expected an object of query to document to score; got {excerpt(content)}")
    for query, own in content.items():
        if not isinstance(own, dict):
            raise DataError(f"{where}: expected document to score for query {query!r}; got {excerpt(own)}")
        wrong = next((name for name, score in own.items() if not number(score)), None)
        if wrong is not None:
            raise DataError(
                f"{where}: expected a number as the score of {wrong!r} for query {query!r}; got {excerpt(own[wrong])}"
            )
    return content


# --- TREC run files: query, Q0, document, rank, score and tag, one line per document --------------

_COLUMNS = 6
_EXPECTED = "expected 6 columns (query, Q0, document, rank, score, tag)"


def looks_like_trec(line: str) -> bool:
    """Whether a line is one of a TREC run file."""
    columns = line.split()
    return len(columns) == _COLUMNS and _is_number(columns[3]) and _is_number(columns[4])


def read_trec(path: Path) -> FinishedRun:
    """Read a TREC run file, plain or gzipped.

    Raises:
        DataError: a line has not six columns, a score is no number, a query has a document twice,
            or the lowest scores are the best.
    """
    text = read_text(path)
    rankings: dict[str, dict[str, float]] = {}
    first: dict[str, tuple[float, float]] = {}  # the least rank of a query, and its score
    ranked: set[str] = set()  # queries with more than one rank
    for line_number, line in enumerate(text.split("\n"), start=1):
        columns = line.split(None, 5)
        if not columns:
            continue
        if len(columns) < _COLUMNS:
            where = f"{path}, line {line_number}"
            raise DataError(f"{where}: {_EXPECTED}; got {len(columns)} in {excerpt(line)}")
        query, _, document, rank, written, _ = columns
        try:
            score = float(written)
        except ValueError:
            where = f"{path}, line {line_number}"
            raise DataError(f"{where}: the score, column 5, must be a number; got {excerpt(written)}") from None
        own = rankings.setdefault(query, {})
        if document in own:
            where = f"{path}, line {line_number}"
            raise DataError(f"{where}: query {query!r} has document {document!r} twice; keep one of the lines")
        own[document] = score
        try:
            place = float(rank)
        except ValueError:
            continue
        least = first.setdefault(query, (place, score))
        if place != least[0]:
            ranked.add(query)
            if place < least[0]:
                first[query] = (place, score)
    if not rankings:
        raise DataError(f"{path} is empty; {_EXPECTED} a line")
    return FinishedRun(
        path=path,
        format="trec",
        name=path.name,
        digest=digest(text),
        parts={"": Ranked(rankings=rankings)},
        notes=_order_notes(path, rankings, {query: first[query][1] for query in ranked}),
    )


def _order_notes(
    path: Path, rankings: dict[str, dict[str, float]], scores_of_first: dict[str, float]
) -> tuple[str, ...]:
    """A note if the ranks say another order than the scores; an error if they say the opposite."""
    told = {query: score for query, score in scores_of_first.items() if _spread(rankings[query])}
    lowest = sum(score == min(rankings[query].values()) for query, score in told.items())
    other = sum(score < max(rankings[query].values()) for query, score in told.items())
    if lowest > len(told) / 2:
        raise DataError(
            f"{path}: the document of the first rank has the lowest score, for {lowest:,} of "
            f"{len(told):,} queries; expected scores of which the highest is the best. If they are "
            "distances, write them with a minus sign"
        )
    if not other:
        return ()
    return (
        f"{path.name} ranks another document first than its scores do, for {other:,} of "
        f"{len(told):,} queries; the scores count, as in trec_eval",
    )


def _spread(ranking: dict[str, float]) -> bool:
    return min(ranking.values()) < max(ranking.values())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# --- What mteb writes with a prediction folder: TASK_predictions.json, by subset and split --------

META = "mteb_model_meta"
SUFFIX = "_predictions.json"

_REFIT = "each arm's classifier was fitted anew, on the embeddings of that arm; a changed label is the work of both"
_POSITIONS = (
    "mteb stores no ids of labelled inputs: that the {n:,} inputs are the same ones is known from their number only"
)
_CLUSTERS = (
    "taken for labels of a classifier; the older clustering tasks of mteb write numbers of "
    "clusters in the same form, which mean something else in either file"
)
_NEEDS = "quantdrift diff reads rankings, labels, neighbours and zero-shot scores"


def prediction_files(folder: Path) -> list[Path]:
    """The files of predictions in a folder, by name."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def read_mteb(path: Path) -> FinishedRun:
    """Read a file of predictions, or all such files in a folder.

    Returns:
        The run; its parts are named SUBSET/SPLIT, TASK/SUBSET/SPLIT in a folder.

    Raises:
        DataError: it is not such a file, or of a kind of task whose inputs have no answer.
    """
    files = prediction_files(path) if path.is_dir() else [path]
    parts: dict[str, Part] = {}
    notes: list[str] = []
    models: set[str] = set()
    texts: list[str] = []
    for file in files:
        text = read_text(file)
        content = parse_json(text, file)
        texts.append(text)
        if not isinstance(content, dict):
            raise DataError(f"{file}: expected the predictions that mteb writes, a JSON object")
        meta = content.pop(META, {})
        if isinstance(meta, dict) and meta.get("model_name"):
            models.add(str(meta["model_name"]))
        task = f"{file.name.removesuffix(SUFFIX)}/" if path.is_dir() else ""
        for subset, splits in content.items():
            if not isinstance(splits, dict):
                raise DataError(f"{file}: expected the splits of subset {subset!r}")
            for split, predictions in splits.items():
                name = f"{subset}/{split}"
                for more, part, told in _parts(predictions, f"{file}, {name}"):
                    parts[f"{task}{name}{more}"] = part
                    notes += told
    if not parts:
        raise DataError(f"{path} holds no predictions; run mteb with --prediction-folder")
    return FinishedRun(
        path=path,
        format="mteb",
        name=models.pop() if len(models) == 1 else path.name,
        digest=digest(*texts),
        parts=parts,
        data=None if path.is_dir() else path.name.removesuffix(SUFFIX),
        notes=tuple(dict.fromkeys(notes)),
    )


def _parts(predictions: Any, where: str) -> Iterator[tuple[str, Part, tuple[str, ...]]]:
    """What one split holds: an addition to its name, the part, what to know."""
    if isinstance(predictions, dict):
        if is_rankings(predictions):
            yield "", Ranked(rankings=as_rankings(predictions, where)), ()
            return
        if predictions and all(_neighbours(found) for found in predictions.values()):
            for pair, found in predictions.items():
                more = f"/{pair}" if len(predictions) > 1 else ""
                yield more, Ranked(rankings=_nearest(found), depth=1, numbered=True), ()
            return
        if predictions and all(_numbers(found) for found in predictions.values()):
            raise DataError(
                f"{where} holds one score for every pair of texts; no input of such a task has an "
                f"answer that could change. {_NEEDS}"
            )
        raise DataError(f"{where} is of a kind of task that has no answers. {_NEEDS}")
    rows = predictions if isinstance(predictions, list) else []
    if not (rows and all(isinstance(row, list) for row in rows)):
        raise DataError(f"{where} is of a kind of task that has no answers. {_NEEDS}")
    yield from _lists(predictions, where)


def _lists(rows: list[list[Any]], where: str) -> Iterator[tuple[str, Part, tuple[str, ...]]]:
    """Labels by experiment and input, or scores by input and class."""
    values = [value for row in rows for value in row]
    if values and all(isinstance(value, float) for value in values):
        widths = {len(row) for row in rows}
        # a regression has ten experiments of more inputs than that
        if len(widths) > 1 or len(rows) <= max(widths) or max(widths) < 2:  # noqa: PLR2004 -- a choice
            raise DataError(
                f"{where} holds lists of numbers: values of a regression, which have no answer "
                "that could change, or zero-shot scores of fewer inputs than classes, which look "
                f"the same. {_NEEDS}"
            )
        rankings = {str(n): {str(each): score for each, score in enumerate(row)} for n, row in enumerate(rows)}
        yield (
            "",
            Ranked(rankings=rankings, complete=True, numbered=True),
            ("taken for zero-shot scores; the answer of an input is the number of its class",),
        )
        return
    labels = [[_label(value) for value in row] for row in rows]
    if not values or any(label is None for row in labels for label in row):
        raise DataError(f"{where} is of a kind of task that has no answers. {_NEEDS}")
    told = (_REFIT, _CLUSTERS, _POSITIONS.format(n=len(labels[0])))
    for experiment, row in enumerate(labels):
        more = f"#{experiment + 1}" if len(labels) > 1 else ""
        answers = {str(n): str(label) for n, label in enumerate(row)}
        yield more, Labelled(answers=answers, numbered=True), told


def _label(value: Any) -> str | None:
    """A label; of several labels per input, the numbers of those that hold."""
    if isinstance(value, (str, bool, int)):
        return str(value)
    if isinstance(value, list) and all(each in (0, 1) for each in value):
        return "{" + ", ".join(str(n) for n, each in enumerate(value) if each) + "}"
    return None


def _neighbours(found: Any) -> bool:
    return (
        isinstance(found, list)
        and bool(found)
        and all(isinstance(each, dict) and "corpus_id" in each and number(each.get("score")) for each in found)
    )


def _nearest(found: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The one neighbour that mteb keeps of every sentence."""
    return {str(n): {str(each["corpus_id"]): each["score"]} for n, each in enumerate(found)}


def _numbers(found: Any) -> bool:
    return isinstance(found, list) and all(number(each) for each in found)


# --- One arm of a run folder of quantdrift as a ranking -------------------------------------------

_OWN = "quantdrift run"
_TELLING = ("name", "split", "subset", "revision", "n_fewshot")
"""What says which data a harness took, where no digest of the texts was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Digested:
    """Data of which there is a digest: the same ones are the same, whatever they are called."""

    name: str = field(compare=False)
    digest: str

    def __str__(self) -> str:
        return f"{self.name} (digest {self.digest})"


def read_own(path: Path, arm: Arm) -> FinishedRun:
    """Read the ranking of one arm of a run.

    A run holds both arms' scores of the first items of either arm. So more scores are known than
    ranks: those of the other arm's first items too, which lie somewhere below.

    Args:
        path: the run folder.
        arm: which of its two.

    Raises:
        RunError: it is not a run folder, or one that `quantdrift diff` wrote.
    """
    run = read_run(path)
    if "diff" in run.record:
        made = run.record["diff"]
        names = " and ".join(str(made[arm]["path"]) for arm in ("reference", "candidate"))
        raise RunError(f"{path} was made by quantdrift diff, of {names}; give one of those instead")
    evidence = run.evidence()
    part: Part
    if evidence.deltas == "none":
        part = Labelled(answers=_answers(evidence, arm), qrels=_qrels(evidence))
    else:
        whole = not evidence.cut_short
        part = Ranked(
            rankings=_rankings(evidence, arm),
            depth=None if whole else evidence.depth,
            complete=whole,
            qrels=_qrels(evidence),
        )
    record = run.record
    spec, model = str(record.get("spec")), record.get("model", {})
    return FinishedRun(
        path=run.path,
        format="run",
        name=spec if arm == "candidate" else str(model.get("name", spec)),
        digest=digest(arm, run.record["files"][EVIDENCE]),
        parts={"": part},
        settings={"": _settings(run)},
        data=record.get("data", {}).get("name"),
        data_by=_data_by(run),
        reference=model.get("fingerprint"),
    )


def _settings(run: Run) -> dict[str, Any]:
    """What does not depend on the model: the data, and how answers were read from scores.

    Every program names its data, and takes a digest of them, in a way of its own. So both say
    something only beside those of the same program; of others ids and sizes have to do.
    """
    data, settings = run.record.get("data", {}), run.record.get("settings", {})
    told: Any = ", ".join(str(data[name]) for name in _TELLING if data.get(name) not in (None, ""))
    if data.get("fingerprint") is not None:
        told = _Digested(name=str(data.get("name")), digest=str(data["fingerprint"]))
    by, size = _data_by(run), data.get("n_documents")
    return {
        "data" if by == _OWN else f"data of {by}": told,
        **({} if size is None else {"number of documents": size}),
        "reading": settings.get("reading", "similarities"),
    }


def _data_by(run: Run) -> str:
    return str(run.record.get("data", {}).get("harness") or _OWN)


def _rankings(evidence: Evidence, arm: Arm) -> dict[str, dict[str, float]]:
    tops = evidence.reference_top, evidence.candidate_top
    names = [str(name) for name in evidence.item_ids]
    items = np.concatenate([top.items for top in tops], axis=1)
    scores = np.concatenate([getattr(top, f"{arm}_scores") for top in tops], axis=1)
    return {
        str(input_id): {
            names[item]: score
            for item, score in zip(items[row].tolist(), scores[row].tolist(), strict=True)
            if item >= 0 and not math.isnan(score)
        }
        for row, input_id in enumerate(evidence.input_ids)
    }


def _answers(evidence: Evidence, arm: Arm) -> dict[str, str]:
    top = evidence.candidate_top if arm == "candidate" else evidence.reference_top
    names = [str(evidence.item_ids[item]) for item in top.items[:, 0]]
    return dict(zip(map(str, evidence.input_ids), names, strict=True))


def _qrels(evidence: Evidence) -> dict[str, dict[str, int]] | None:
    judgements = evidence.judgements
    if judgements is None or not len(judgements.items):  # labels of other inputs label nothing
        return None
    return {
        str(input_id): {str(evidence.item_ids[item]): grade for item, grade in judgements.of(row).items()}
        for row, input_id in enumerate(evidence.input_ids)
    }


# --- Which format a finished run has: told by its content, not by its name ------------------------

_READERS: Mapping[str, Callable[[Path], FinishedRun]] = {
    "trec": read_trec,
    "json": read_json_rankings,
    "mteb": read_mteb,
    "lm-eval": read_lm_eval,
}

_PEEK = 200
_STRING = r'"(?:[^"\\]|\\.)*"'
_RANKINGS = re.compile(rf"\s*\{{\s*{_STRING}\s*:\s*\{{\s*{_STRING}\s*:\s*[-0-9]")
"""How query to document to score begins."""


def read_finished(path: Path, *, format: str | None = None, arm: Arm = "candidate") -> FinishedRun:
    """Read a finished run.

    Args:
        path: a file, or a folder.
        format: one of `FORMATS`; told by the content if not given.
        arm: which arm of a run folder of quantdrift; others have one.

    Raises:
        DataError: it is of no format, or damaged.
        RunError: it is a run folder that cannot be read.
        UnknownNameError: there is no such format.
    """
    if format is not None and format not in FORMATS:
        raise UnknownNameError("format", format, FORMATS, hint=f"({', '.join(FORMATS)})")
    if not path.exists():
        raise DataError(f"{path} does not exist; expected {_expected()}")
    found = recognise(path) if format is None else format
    return read_own(path, arm) if found == "run" else _READERS[found](path)


def recognise(path: Path) -> Format:
    """The format of a file or folder that exists.

    Raises:
        DataError: it is of none.
    """
    if path.is_dir():
        return _of_folder(path)
    if path.name == RECORD:
        return "run"
    text = read_text(path)
    start = text.lstrip()
    if start.startswith("{"):
        return _of_json(path, text)
    line = start.split("\n", 1)[0]
    if looks_like_trec(line):
        return "trec"
    found = excerpt(line) if line.strip() else "nothing"
    raise DataError(f"{path}: expected {_expected()}; it begins with {found}")


def _of_folder(path: Path) -> Format:
    if (path / RECORD).is_file():
        return "run"
    kinds = {"mteb": prediction_files(path), "lm-eval": sample_files(path)}
    there = [name for name, files in kinds.items() if files]
    if len(there) == 1:
        return cast("Format", there[0])
    if there:
        raise DataError(f"{path} holds {' and '.join(there)} files; say which with --format")
    names = some(sorted(entry.name for entry in path.iterdir())) or "nothing"
    raise DataError(f"{path}: expected {_expected()}; the folder holds {names}")


def _of_json(path: Path, text: str) -> Format:
    # big files are parsed once, by their reader
    if META in text[:_PEEK]:
        return "mteb"
    if _RANKINGS.match(text):
        return "json"
    first = _first_line(text)
    if is_sample(first):
        return "lm-eval"
    content = parse_json(text, path)
    if META in content:
        return "mteb"
    if "configs" in content and "results" in content:
        raise DataError(
            f"{path} holds lm-eval's results, not its samples; give the folder, with the "
            "samples_*.jsonl that --log_samples writes"
        )
    if is_rankings(content) or means_only(content):
        return "json"
    raise DataError(f"{path}: expected {_expected()}; its keys are {some(content) or 'none'}")


def _first_line(text: str) -> object:
    try:
        return parse_json(text.lstrip().split("\n", 1)[0], "")
    except DataError:
        return None


def _expected() -> str:
    *most, last = FORMATS.values()
    return f"{'; '.join(most)}; or {last}"


# --- Relevance labels from a file: of the BEIR layout, as trec_eval reads them, or as JSON --------


def read_qrels(path: Path) -> tuple[dict[str, dict[str, int]], tuple[str, ...]]:
    """Relevance labels, in whichever of the three forms they are; gzipped or not.

    Returns:
        Query to document to grade, and what to know: one sentence or none.

    Raises:
        DataError: there is no such file, it is in none of these forms, or a grade is no whole
            number.
    """
    if not path.is_file():
        raise DataError(f"expected a file of relevance labels; {path} is none")
    text = read_text(path)
    if text.lstrip().startswith("{"):
        return _qrels_of_json(parse_json(text, path), path), ()
    qrels, conflicting = read_lines_of_qrels(path)
    twice = f"{len(set(conflicting)):,} queries have a document twice in {path.name}, with "
    return qrels, (twice + "grades that differ; the last counts",) if conflicting else ()


def _qrels_of_json(content: Any, path: Path) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    for query, labels in content.items():
        if not isinstance(labels, dict):
            raise DataError(f"{path}: expected document to grade for query {query!r}; got {excerpt(labels)}")
        for document, grade in labels.items():
            if isinstance(grade, float) and grade.is_integer():
                grade = int(grade)  # noqa: PLW2901 -- what a data frame writes
            if not isinstance(grade, int):
                raise DataError(
                    f"{path}: expected a whole number as the grade of {document!r} for query "
                    f"{query!r}; got {excerpt(grade)}"
                )
            qrels.setdefault(query, {})[document] = int(grade)
    if not qrels:
        raise DataError(f"{path} holds no label; leave --qrels out")
    return qrels
