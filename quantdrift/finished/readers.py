"""Finished runs from files, told by their content and not by their name."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from quantdrift.base.errors import DataError, RunError
from quantdrift.data.retrieval import excerpt, some
from quantdrift.evidence.record import Evidence
from quantdrift.finished.contents import Arm, FinishedRun, Part, digest, number, parse_json, read_text
from quantdrift.finished.lm_eval import is_sample, read_lm_eval, sample_files
from quantdrift.runs.folder import EVIDENCE, RECORD, read_run
from quantdrift.runs.identity import Identity

_FORMATS = (
    "a TREC run file (query Q0 document rank score tag); rankings as JSON, query to document to score (what beir's "
    "search returns); predictions of mteb (TASK_predictions.json, or a folder of them); samples of lm-eval "
    "(samples_TASK_DATE.jsonl, or the folder --log_samples filled); or a run folder of quantdrift"
)


def read_finished(path: Path, *, arm: Arm = "candidate") -> FinishedRun:
    """Read a finished run."""
    if not path.exists():
        raise DataError(f"{path} does not exist; expected {_FORMATS}")
    if path.name == RECORD or (path / RECORD).is_file():
        return read_own(path, arm)
    if path.is_dir():
        there = {read_mteb: any(path.glob(f"*{SUFFIX}")), read_lm_eval: bool(sample_files(path))}
        readers = [reader for reader, is_there in there.items() if is_there]
        if len(readers) != 1:
            names = some(sorted(entry.name for entry in path.iterdir())) or "nothing"
            raise DataError(f"{path}: expected {_FORMATS}; the folder holds {names}")
        return readers[0](path)
    text = read_text(path)
    line, _, rest = text.lstrip().partition("\n")
    if not line.startswith("{"):
        return _trec(path, text)
    try:
        content = parse_json(line, path)
    except DataError:
        content = None  # one value over several lines
    if is_sample(content):
        return read_lm_eval(path)
    if content is None or rest.strip():
        content = parse_json(text, path)
    return read_mteb(path) if META in content else _json_rankings(path, text, content)


# --- rankings as JSON: query to document to score, as beir's search returns them ------------------

_MEANS = frozenset({"ndcg", "map", "recall", "precision"})
"""Keys of what beir's save_results writes."""


def _json_rankings(path: Path, text: str, content: dict[str, Any]) -> FinishedRun:
    if content.keys() >= _MEANS:
        raise DataError(
            f"{path} holds the mean scores that beir's save_results writes, not the ranking of every query. Save what "
            "the search returned: beir.util.save_runfile(FILE, results), or json.dump(results, file)"
        )
    for query, own in content.items():
        if not _is_ranking(own):
            found = next(((n, s) for n, s in own.items() if not number(s)), own) if isinstance(own, dict) else own
            raise DataError(f"{path}: expected document to score, a number, for query {query!r}; got {excerpt(found)}")
    if not content:
        raise DataError(f"{path}: expected {_FORMATS}; got an empty object")
    part = Part(kind="rankings", content=content)
    return FinishedRun(path=path, format="json", name=path.name, digest=digest(text), parts={"": part})


def _is_ranking(own: Any) -> bool:
    return isinstance(own, dict) and all(map(number, own.values()))


# --- TREC run files: query, Q0, document, rank, score and tag, one line per document --------------


def read_trec(path: Path) -> FinishedRun:
    """Read a TREC run file, plain or gzipped; the score decides, as in trec_eval."""
    return _trec(path, read_text(path))


def _trec(path: Path, text: str) -> FinishedRun:
    rankings: dict[str, dict[str, float]] = {}
    for line_number, line in enumerate(text.split("\n"), start=1):
        columns = line.split(None, 5)
        if not columns:
            continue
        where = f"{path}, line {line_number}"
        try:
            query, _, document, _, written, _ = columns
            score = float(written)
        except ValueError:
            expected = _FORMATS if not rankings else "6 columns (query, Q0, document, rank, score, tag)"
            raise DataError(f"{where}: expected {expected}; got {excerpt(line)}") from None
        own = rankings.setdefault(query, {})
        if document in own:
            raise DataError(f"{where}: query {query!r} has document {document!r} twice; keep one of the lines")
        own[document] = score
    if not rankings:
        raise DataError(f"{path} is empty; expected {_FORMATS}")
    part = Part(kind="rankings", content=rankings)
    return FinishedRun(path=path, format="trec", name=path.name, digest=digest(text), parts={"": part})


# --- what mteb writes with a prediction folder: TASK_predictions.json, by subset and split --------

META = "mteb_model_meta"
SUFFIX = "_predictions.json"

_ABOUT_LABELS = (
    "mteb fits a classifier for each model and stores no ids: a changed label is the work of both, and that the inputs "
    "are the same is known from their number. Older clustering tasks write numbers of clusters, which mean nothing here"
)


def read_mteb(path: Path) -> FinishedRun:
    """Read a file of predictions, or all such files in a folder."""
    files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
    parts: dict[str, Part] = {}
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
                for more, part in _predicted(predictions, f"{file}, {subset}/{split}"):
                    parts[f"{task}{subset}/{split}{more}"] = part
    if not parts:
        raise DataError(f"{path} holds no predictions; run mteb with --prediction-folder")
    return FinishedRun(
        path=path,
        format="mteb",
        name=models.pop() if len(models) == 1 else path.name,
        digest=digest(*texts),
        parts=parts,
        data=None if path.is_dir() else path.name.removesuffix(SUFFIX),
        notes=(_ABOUT_LABELS,) if any(part.kind == "answers" for part in parts.values()) else (),
    )


def _predicted(predictions: Any, where: str) -> Iterator[tuple[str, Part]]:
    """What one split holds: an addition to its name, and the part."""
    rows = predictions if isinstance(predictions, list) else []
    if isinstance(predictions, dict) and predictions and all(map(_is_ranking, predictions.values())):
        yield "", Part(kind="rankings", content=predictions)
    elif isinstance(predictions, dict) and predictions and all(map(_is_neighbours, predictions.values())):
        for pair, found in predictions.items():
            nearest = {str(n): {str(each["corpus_id"]): each["score"]} for n, each in enumerate(found)}
            more = f"/{pair}" if len(predictions) > 1 else ""
            yield more, Part(kind="rankings", content=nearest, depth=1, numbered=True)
    elif rows and all(isinstance(row, list) and row and not any(map(_is_float, row)) for row in rows):
        for experiment, row in enumerate(rows, start=1):
            answers = {str(n): label if isinstance(label, str) else json.dumps(label) for n, label in enumerate(row)}
            yield f"#{experiment}" if len(rows) > 1 else "", Part(kind="answers", content=answers, numbered=True)
    else:
        raise DataError(
            f"{where} is of a kind of task whose inputs have no answer that could change (scores of pairs of texts, or "
            "of classes, or a regression). quantdrift diff reads rankings, labels and neighbours"
        )


def _is_float(value: Any) -> bool:
    return isinstance(value, float | dict) or (isinstance(value, list) and any(map(_is_float, value)))


def _is_neighbours(found: Any) -> bool:
    """Whether it is what bitext mining keeps: the nearest neighbour of every sentence."""
    rows = found if isinstance(found, list) and found else [None]
    return all(isinstance(each, dict) and "corpus_id" in each and number(each.get("score")) for each in rows)


# --- one arm of a run folder of quantdrift --------------------------------------------------------


def read_own(path: Path, arm: Arm) -> FinishedRun:
    """Read the ranking of one arm of a run.

    A run holds both arms' scores of the first items of either arm. So more scores are known than ranks: those of the
    other arm's first items too, which lie somewhere below.
    """
    run = read_run(path)
    record = run.record
    if "diff" in record:
        names = " and ".join(str(record["diff"][each]["path"]) for each in ("reference", "candidate"))
        raise RunError(f"{path} was made by quantdrift diff, of {names}; give one of those instead")
    spec, data = str(record["spec"]), record["data"]
    reading = record.get("settings", {}).get("reading", "similarities")
    return FinishedRun(
        path=run.path,
        format="run",
        name=spec if arm == "candidate" else str(record.get("model", {}).get("name", spec)),
        digest=digest(arm, record["files"][EVIDENCE]),
        parts={"": _own_part(run.evidence(), arm)},
        identity=Identity.of({"data": data, "settings": {"reading": reading}}),
        data=data["name"],
        data_by=data.get("harness"),
    )


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
