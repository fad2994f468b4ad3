"""A study as a JSON file: one line per cell, with everything that the tables are computed from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import DataError, QuantDriftError
from quantdrift.records import read_json, refuse_other, write_text
from quantdrift.study.allocation.cells import Cell, CorpusCells
from quantdrift.study.allocation.plan import AllocationPlan

__all__ = ["AllocationStudy", "check_place", "read_study", "write_study"]

FORMAT = "quantdrift-allocation-study"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AllocationStudy:
    """A finished study.

    Attributes:
        model: name of the model.
        plan: the grid.
        corpora: what was measured, corpus by corpus.
    """

    model: str
    plan: AllocationPlan
    corpora: Sequence[CorpusCells]


def write_study(path: Path, study: AllocationStudy) -> None:
    """Write a study, replacing an earlier file.

    Raises:
        RunError: it cannot be written.
    """
    head = {
        "format": FORMAT,
        "version": VERSION,
        "model": study.model,
        "plan": asdict(study.plan),
    }
    corpora = ",\n".join(_corpus_text(corpus) for corpus in study.corpora)
    write_text(
        Path(path).absolute(),
        f'{{\n{_inside(head)},\n"corpora": [\n{corpora}\n]\n}}\n',
        what="the study",
    )


def check_place(path: Path) -> None:
    """Refuse a place that holds something other than a study, before hours go into one.

    Raises:
        RunError: it is a folder, or another kind of file.
    """
    refuse_other(path, FORMAT, "a study of allocations")


def read_study(path: Path) -> AllocationStudy:
    """Read what `write_study` wrote.

    Raises:
        DataError: there is no such file, it is damaged, or another version wrote it.
    """
    try:
        found = read_json(Path(path))
    except (OSError, ValueError) as error:
        raise DataError(
            f"expected a file that quantdrift study allocation wrote; {path} cannot be read as "
            f"one: {error}"
        ) from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DataError(
            f"{path} is no study of allocations; expected a file that quantdrift study allocation "
            "wrote"
        )
    if found.get("version") != VERSION:
        raise DataError(
            f"{path} is a study of version {found.get('version')!r}; this quantdrift reads version "
            f"{VERSION}. Read it with the quantdrift that wrote it, or measure it again."
        )
    try:
        plan: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in found["plan"].items()
        }
        study = AllocationStudy(
            model=str(found["model"]),
            plan=AllocationPlan(**plan),
            corpora=[_corpus(part) for part in found["corpora"]],
        )
        _check(study)
    except QuantDriftError as error:
        raise DataError(f"{path} is damaged: {error}; measure it again") from error
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DataError(f"{path} is damaged: {error!r}; measure it again") from error
    return study


def _check(study: AllocationStudy) -> None:
    if not study.corpora:
        raise ValueError("no corpus")
    for corpus in study.corpora:
        _check_corpus(corpus, study.plan)


def _check_corpus(corpus: CorpusCells, plan: AllocationPlan) -> None:
    """Refuse cells that are not those of the grid, or not of these queries and layers."""
    wanted = {
        (criterion, budget, quantizer, draw.seed, draw.n_queries)
        for criterion, budget, draw, _ in plan.schemes()
        for quantizer in plan.quantizers
    }
    cells = corpus.cells
    there = [(c.criterion, c.budget, c.quantizer, c.seed, c.n_queries) for c in cells]
    if sorted(there) != sorted(wanted):
        raise ValueError(f"the cells of {corpus.corpus} are not those of its grid")
    n_queries, n_layers = len(corpus.query_ids), len(corpus.layers)
    by_query = [corpus.reference, *(cell.first for cell in cells)]
    by_query += [arm[name] for arm in (corpus.low, corpus.high) for name in plan.quantizers]
    by_query += [] if corpus.relevant is None else [np.array([len(r) for r in corpus.relevant])]
    by_layer = [corpus.n_weights, *(a for cell in cells for a in (cell.widths, cell.scores))]
    for arrays, n in ((by_query, n_queries), (by_layer, n_layers)):
        if any(array.shape != (n,) for array in arrays):
            raise ValueError(f"in {corpus.corpus}, lists differ in length")


def _inside(values: Mapping[str, Any]) -> str:
    """The members of a JSON object, one a line."""
    return ",\n".join(
        f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}"
        for name, value in values.items()
    )


def _corpus_text(corpus: CorpusCells) -> str:
    head = {
        "corpus": corpus.corpus,
        "fingerprint": corpus.fingerprint,
        "query_ids": list(corpus.query_ids),
        "layers": list(corpus.layers),
        "n_weights": corpus.n_weights.tolist(),
        "reference": corpus.reference.tolist(),
        "low": {name: first.tolist() for name, first in corpus.low.items()},
        "high": {name: first.tolist() for name, first in corpus.high.items()},
        "relevant": None
        if corpus.relevant is None
        else [sorted(documents) for documents in corpus.relevant],
    }
    cells = ",\n".join(json.dumps(_cell_json(cell)) for cell in corpus.cells)
    return f'{{\n{_inside(head)},\n"cells": [\n{cells}\n]\n}}'


def _cell_json(cell: Cell) -> dict[str, Any]:
    return {
        "criterion": cell.criterion,
        "budget": cell.budget,
        "quantizer": cell.quantizer,
        "seed": cell.seed,
        "n_queries": cell.n_queries,
        "widths": cell.widths.tolist(),
        "scores": cell.scores.tolist(),
        "first": cell.first.tolist(),
        "not_counted": np.flatnonzero(~cell.counted).tolist(),
    }


def _corpus(found: Mapping[str, Any]) -> CorpusCells:
    relevant = found["relevant"]
    reference = _whole(found["reference"])
    return CorpusCells(
        corpus=str(found["corpus"]),
        fingerprint=str(found["fingerprint"]),
        query_ids=tuple(found["query_ids"]),
        layers=tuple(found["layers"]),
        n_weights=_whole(found["n_weights"]),
        reference=reference,
        low={name: _whole(first) for name, first in found["low"].items()},
        high={name: _whole(first) for name, first in found["high"].items()},
        relevant=None if relevant is None else [frozenset(part) for part in relevant],
        cells=[_cell(part, len(reference)) for part in found["cells"]],
    )


def _cell(found: Mapping[str, Any], n_queries: int) -> Cell:
    counted = np.ones(n_queries, dtype=bool)
    counted[_whole(found["not_counted"])] = False
    return Cell(
        criterion=str(found["criterion"]),
        budget=float(found["budget"]),
        quantizer=str(found["quantizer"]),
        seed=int(found["seed"]),
        n_queries=int(found["n_queries"]),
        widths=_whole(found["widths"]),
        scores=np.array(found["scores"], dtype=np.float64),
        first=_whole(found["first"]),
        counted=counted,
    )


def _whole(values: Sequence[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)
