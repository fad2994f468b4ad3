"""Finished runs from files, told by their content and not by their name; and relevance labels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from quantdrift.datasets.retrieval import excerpt, some
from quantdrift.datasets.retrieval import read_qrels as read_lines_of_qrels
from quantdrift.errors import DataError, RunError, UnknownNameError
from quantdrift.evidence import Evidence
from quantdrift.finished.contents import FORMATS, Arm, FinishedRun, Format, Part, digest, number, parse_json, read_text
from quantdrift.finished.lm_eval import is_sample, read_lm_eval, sample_files
from quantdrift.runs import EVIDENCE, RECORD, Run, read_run

# --- rankings as JSON: query to document to score, as beir's search returns them ------------------

_MEANS = frozenset({"ndcg", "map", "recall", "precision"})
"""Keys of what beir's save_results writes."""


def read_json_rankings(path: Path) -> FinishedRun:
    """Read rankings that were written as JSON, plain or gzipped."""
    text = read_text(path)
    content = parse_json(text, path)
    if isinstance(content, dict) and content.keys() >= _MEANS:
        raise DataError(
            f"{path} holds the mean scores that beir's save_results writes, not the ranking of every query. Save what "
            "the search returned: beir.util.save_runfile(FILE, results), or json.dump(results, file)"
        )
    part = Part(kind="rankings", content=_rankings(content, str(path)))
    return FinishedRun(path=path, format="json", name=path.name, digest=digest(text), parts={"": part})


def _holds_rankings(content: Any) -> bool:
    """Whether a JSON value is query to document to score, as far as its first list tells."""
    if not (isinstance(content, dict) and content and all(isinstance(own, dict) for own in content.values())):
        return False
    first: dict[str, Any] = next((own for own in content.values() if own), {})
    return all(number(score) for score in first.values())


def _rankings(content: Any, where: str) -> dict[str, dict[str, float]]:
    if not isinstance(content, dict) or not content:
        raise DataError(f"{where}: expected an object of query to document to score; got {excerpt(content)}")
    for query, own in content.items():
        if not isinstance(own, dict) or not all(map(number, own.values())):
            found = next(((n, s) for n, s in own.items() if not number(s)), own) if isinstance(own, dict) else own
            raise DataError(f"{where}: expected document to score, a number, for query {query!r}; got {excerpt(found)}")
    return content


# --- TREC run files: query, Q0, document, rank, score and tag, one line per document --------------

_COLUMNS = 6
_EXPECTED = "expected 6 columns (query, Q0, document, rank, score, tag)"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_trec(path: Path) -> FinishedRun:
    """Read a TREC run file, plain or gzipped; the score decides, as in trec_eval."""
    text = read_text(path)
    rankings: dict[str, dict[str, float]] = {}
    first: dict[str, tuple[float, float]] = {}  # the least rank of a query, and its score
    ranked: set[str] = set()  # queries with more than one rank
    for line_number, line in enumerate(text.split("\n"), start=1):
        columns = line.split(None, 5)
        if not columns:
            continue
        if len(columns) < _COLUMNS:
            raise DataError(f"{path}, line {line_number}: {_EXPECTED}; got {len(columns)} in {excerpt(line)}")
        query, _, document, rank, written, _ = columns
        try:
            score, place = float(written), float(rank)
        except ValueError:
            where = f"{path}, line {line_number}"
            raise DataError(f"{where}: rank and score, columns 4 and 5, must be numbers; got {excerpt(line)}") from None
        own = rankings.setdefault(query, {})
        if document in own:
            raise DataError(
                f"{path}, line {line_number}: query {query!r} has document {document!r} twice; keep one of the lines"
            )
        own[document] = score
        least = first.setdefault(query, (place, score))
        if place != least[0]:
            ranked.add(query)
            if place < least[0]:
                first[query] = (place, score)
    if not rankings:
        raise DataError(f"{path} is empty; {_EXPECTED} a line")
    spread = {query: rankings[query].values() for query in ranked}
    told = [query for query, own in spread.items() if min(own) < max(own)]
    lowest = sum(first[query][1] == min(spread[query]) for query in told)
    if lowest > len(told) / 2:
        raise DataError(
            f"{path}: the document of the first rank has the lowest score, for {lowest:,} of {len(told):,} queries; "
            "expected scores of which the highest is the best. If they are distances, write them with a minus sign"
        )
    part = Part(kind="rankings", content=rankings)
    return FinishedRun(path=path, format="trec", name=path.name, digest=digest(text), parts={"": part})


# --- what mteb writes with a prediction folder: TASK_predictions.json, by subset and split --------

META = "mteb_model_meta"
SUFFIX = "_predictions.json"

_ABOUT_LABELS = (
    "each arm's classifier was fitted anew, on the embeddings of that arm; a changed label is the work of both",
    "taken for labels of a classifier; the older clustering tasks of mteb write numbers of clusters in the same form, "
    "which mean something else in either file",
    "mteb stores no ids of labelled inputs: that the {n:,} inputs are the same ones is known from their number only",
)


def read_mteb(path: Path) -> FinishedRun:
    """Read a file of predictions, or all such files in a folder."""
    files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
    parts: dict[str, Part] = {}
    notes: list[str] = []
    texts = [read_text(file) for file in files]
    models: set[str] = set()
    for file, text in zip(files, texts, strict=True):
        content = parse_json(text, file)
        meta = content.pop(META, {}) if isinstance(content, dict) else {}
        if not isinstance(content, dict) or not all(isinstance(splits, dict) for splits in content.values()):
            raise DataError(f"{file}: expected the predictions that mteb writes, an object of subsets and their splits")
        if isinstance(meta, dict) and meta.get("model_name"):
            models.add(str(meta["model_name"]))
        task = f"{file.name.removesuffix(SUFFIX)}/" if path.is_dir() else ""
        for subset, splits in content.items():
            for split, predictions in splits.items():
                for more, part, told in _predicted(predictions, f"{file}, {subset}/{split}"):
                    parts[f"{task}{subset}/{split}{more}"] = part
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


def _predicted(predictions: Any, where: str) -> Iterator[tuple[str, Part, tuple[str, ...]]]:
    """What one split holds: an addition to its name, the part, what to know."""
    rows: list[Any] = predictions if isinstance(predictions, list) and predictions else [None]
    if _holds_rankings(predictions):
        yield "", Part(kind="rankings", content=_rankings(predictions, where)), ()
    elif isinstance(predictions, dict) and predictions and all(map(_neighbours, predictions.values())):
        for pair, found in predictions.items():
            nearest = {str(n): {str(each["corpus_id"]): each["score"]} for n, each in enumerate(found)}
            more = f"/{pair}" if len(predictions) > 1 else ""
            yield more, Part(kind="rankings", content=nearest, depth=1, numbered=True), ()
    elif not all(isinstance(row, list) and row for row in rows):
        raise _no_answers(where)
    elif all(isinstance(value, float) for row in rows for value in row):
        widths = {len(row) for row in rows}
        # a regression has ten experiments of more inputs than that
        if len(widths) > 1 or len(rows) <= max(widths) or max(widths) < 2:  # noqa: PLR2004 -- a choice
            raise _no_answers(where, "or zero-shot scores of fewer inputs than classes, which look like a regression")
        scores = {str(n): {str(each): score for each, score in enumerate(row)} for n, row in enumerate(rows)}
        told = ("taken for zero-shot scores; the answer of an input is the number of its class",)
        yield "", Part(kind="rankings", content=scores, complete=True, numbered=True), told
    else:
        for experiment, row in enumerate(rows, start=1):
            answers = {str(n): _label(value, where) for n, value in enumerate(row)}
            more = f"#{experiment}" if len(rows) > 1 else ""
            notes = tuple(note.format(n=len(row)) for note in _ABOUT_LABELS)
            yield more, Part(kind="answers", content=answers, numbered=True), notes


def _label(value: Any, where: str) -> str:
    """A label; of several labels per input, the numbers of those that hold."""
    if isinstance(value, (str, bool, int)):
        return str(value)
    if isinstance(value, list) and all(each in (0, 1) for each in value):
        return "{" + ", ".join(str(n) for n, each in enumerate(value) if each) + "}"
    raise _no_answers(where)


def _neighbours(found: Any) -> bool:
    """Whether it is what bitext mining keeps: the nearest neighbour of every sentence."""
    rows = found if isinstance(found, list) and found else [None]
    return all(isinstance(each, dict) and "corpus_id" in each and number(each.get("score")) for each in rows)


def _no_answers(where: str, more: str = "one score for every pair of texts, say, or a regression") -> DataError:
    return DataError(
        f"{where} is of a kind of task whose inputs have no answer that could change ({more}). quantdrift diff reads "
        "rankings, labels, neighbours and zero-shot scores"
    )


# --- one arm of a run folder of quantdrift --------------------------------------------------------

_OWN = "quantdrift run"
_TELLING = ("name", "split", "subset", "revision", "n_fewshot")
"""What says which data a harness took, where no digest of the texts was made."""


def read_own(path: Path, arm: Arm) -> FinishedRun:
    """Read the ranking of one arm of a run.

    A run holds both arms' scores of the first items of either arm. So more scores are known than ranks: those of the
    other arm's first items too, which lie somewhere below.
    """
    run = read_run(path)
    if "diff" in run.record:
        made = run.record["diff"]
        names = " and ".join(str(made[arm]["path"]) for arm in ("reference", "candidate"))
        raise RunError(f"{path} was made by quantdrift diff, of {names}; give one of those instead")
    record = run.record
    spec, model, data = str(record.get("spec")), record.get("model", {}), record.get("data", {})
    return FinishedRun(
        path=run.path,
        format="run",
        name=spec if arm == "candidate" else str(model.get("name", spec)),
        digest=digest(arm, record["files"][EVIDENCE]),
        parts={"": _own_part(run.evidence(), arm)},
        settings={"": _own_settings(run)},
        data=data.get("name"),
        data_by=str(data.get("harness") or _OWN),
        reference=model.get("fingerprint"),
    )


def _own_settings(run: Run) -> dict[str, Any]:
    """What does not depend on the model: the data, and how answers were read from scores.

    Every program names its data, and takes a digest of them, in a way of its own. So both say something only beside
    those of the same program; of others ids and sizes have to do.
    """
    data, settings = run.record.get("data", {}), run.record.get("settings", {})
    told = ", ".join(str(data[name]) for name in _TELLING if data.get(name) not in (None, ""))
    if data.get("fingerprint") is not None:
        told = f"digest {data['fingerprint']}"
    by, size = data.get("harness") or _OWN, data.get("n_documents")
    return {
        "data" if by == _OWN else f"data of {by}": told,
        **({} if size is None else {"number of documents": size}),
        "reading": settings.get("reading", "similarities"),
    }


def _own_part(evidence: Evidence, arm: Arm) -> Part:
    inputs, names = [str(name) for name in evidence.input_ids], [str(name) for name in evidence.item_ids]
    judgements, qrels = evidence.judgements, None
    if judgements is not None and len(judgements.items):  # labels of other inputs label nothing
        qrels = {
            name: {names[item]: grade for item, grade in judgements.of(row).items()} for row, name in enumerate(inputs)
        }
    tops = evidence.reference_top, evidence.candidate_top
    if evidence.deltas == "none":
        first = tops[arm == "candidate"].items[:, 0].tolist()
        answers = {name: names[item] for name, item in zip(inputs, first, strict=True)}
        return Part(kind="answers", content=answers, qrels=qrels)
    items = np.concatenate([top.items for top in tops], axis=1).tolist()
    scores = np.concatenate([getattr(top, f"{arm}_scores") for top in tops], axis=1).tolist()
    rankings = {
        name: {
            names[item]: score for item, score in zip(own, given, strict=True) if item >= 0 and not math.isnan(score)
        }
        for name, own, given in zip(inputs, items, scores, strict=True)
    }
    whole = not evidence.cut_short
    depth = None if whole else evidence.depth
    return Part(kind="rankings", content=rankings, depth=depth, complete=whole, qrels=qrels)


# --- any of them ----------------------------------------------------------------------------------

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
_ANY_FORMAT = f"{'; '.join([*FORMATS.values()][:-1])}; or {FORMATS['run']}"


def read_finished(path: Path, *, format: str | None = None, arm: Arm = "candidate") -> FinishedRun:
    """Read a finished run."""
    if format is not None and format not in FORMATS:
        raise UnknownNameError("format", format, FORMATS, hint=f"({', '.join(FORMATS)})")
    if not path.exists():
        raise DataError(f"{path} does not exist; expected {_ANY_FORMAT}")
    found = recognise(path) if format is None else format
    return read_own(path, arm) if found == "run" else _READERS[found](path)


def recognise(path: Path) -> Format:
    """The format of a file or folder that exists."""
    if path.name == RECORD or (path / RECORD).is_file():
        return "run"
    if not path.is_dir():
        return _of_text(read_text(path), path)
    kinds = {"mteb": any(path.glob(f"*{SUFFIX}")), "lm-eval": bool(sample_files(path))}
    there = [name for name, is_there in kinds.items() if is_there]
    if len(there) == 1:
        return cast("Format", there[0])
    names = some(sorted(entry.name for entry in path.iterdir())) or "nothing"
    raise DataError(f"{path}: expected {_ANY_FORMAT}; the folder holds {' and '.join(there) or names}")


def _of_text(text: str, path: Path) -> Format:
    line, content = text.lstrip().split("\n", 1)[0], {}
    columns = line.split()
    # big files are parsed once, by their reader
    if line.startswith("{") and META not in text[:_PEEK] and not _RANKINGS.match(text):
        try:
            content = parse_json(line, "")
        except DataError:  # one value over several lines
            content = parse_json(text, path)
    elif line.startswith("{"):
        return "mteb" if META in text[:_PEEK] else "json"
    elif len(columns) == _COLUMNS and _is_number(columns[3]) and _is_number(columns[4]):
        return "trec"
    else:
        raise DataError(f"{path}: expected {_ANY_FORMAT}; it begins with {excerpt(line) if line else 'nothing'}")
    if "configs" in content and "results" in content:
        raise DataError(
            f"{path} holds lm-eval's results, not its samples; give the folder, with the "
            "samples_*.jsonl that --log_samples writes"
        )
    kinds: dict[Format, bool] = {
        "lm-eval": is_sample(content),
        "mteb": META in content,
        "json": _holds_rankings(content) or content.keys() >= _MEANS,
    }
    for kind, fits in kinds.items():
        if fits:
            return kind
    raise DataError(f"{path}: expected {_ANY_FORMAT}; its keys are {some(content) or 'none'}")


# --- relevance labels: of the BEIR layout, as trec_eval reads them, or as JSON --------------------


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Relevance labels, in whichever of the three forms they are; gzipped or not."""
    if not path.is_file():
        raise DataError(f"expected a file of relevance labels; {path} is none")
    text = read_text(path)
    if not text.lstrip().startswith("{"):
        return read_lines_of_qrels(path)
    content = parse_json(text, path)
    for query, labels in content.items():
        if not isinstance(labels, dict):
            raise DataError(f"{path}: expected document to grade for query {query!r}; got {excerpt(labels)}")
        for document, grade in labels.items():
            if not isinstance(grade, int | float) or grade != grade // 1:
                raise DataError(
                    f"{path}: expected a whole number as the grade of {document!r} for query "
                    f"{query!r}; got {excerpt(grade)}"
                )
    if not any(content.values()):
        raise DataError(f"{path} holds no label; leave --qrels out")
    return {query: {name: int(grade) for name, grade in own.items()} for query, own in content.items() if own}
