"""Searches made from other data: in a part of a corpus, and of labelled inputs among each other.

One seeded permutation orders the documents; the part of n documents is its first n, so a part contains every smaller
one. Source: paper, appendix, "Corpus size, case by case".
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from quantdrift.asking.opening import Opened
from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.data.labelled import Dataset
from quantdrift.measuring.readings import Search
from quantdrift.models.inputs import Rows
from quantdrift.models.store import digest_of, key_of
from quantdrift.scoring.similarity import Similarity

ALL = "all"


def nested_subset(n_documents: int, size: int, *, seed: int) -> Rows:
    """Return the positions of the documents of a part: the first n of one seeded permutation, sorted; int64 [n].

    >>> nested_subset(5, 2, seed=0).tolist()
    [2, 4]
    """
    if not 1 <= size <= n_documents:
        raise DataError(f"expected a size from 1 up to the {n_documents:,} documents of the corpus; got {size:,}")
    order = np.random.default_rng(seed).permutation(n_documents).astype(np.int64)
    return np.sort(order[:size])


# --- A part of a corpus ---------------------------------------------------------------------------


def part_of(opened: Opened, dataset: Dataset, size: int | str, *, seed: int = 0) -> Opened:
    """Restrict a search to a part of its corpus; documents keep their positions in the whole.

    Raises:
        DataError: the corpus is smaller.
    """
    if not isinstance(opened.reading, Search):
        raise UnsupportedError(
            f"{dataset.name} is no search, so no corpus has sizes; leave sizes out, or say neighbours"
        )
    n_documents = len(opened.reading.sides[-1].ids)
    subset = nested_subset(n_documents, n_documents if size == ALL else int(size), seed=seed)
    data = _describe_part(opened.data, subset, seed)
    return replace(opened, reading=replace(opened.reading, rows=subset), data=data)


def _describe_part(data: Mapping[str, Any], subset: Rows, seed: int) -> dict[str, Any]:
    """Describe a part of a corpus for run.json; each part has its own fingerprint."""
    n, of = len(subset), data["n_documents"]
    size = {"seed": seed, "n": n, "of": of, "corpus": data["name"], "corpus_fingerprint": data["fingerprint"]}
    record = {**data, "corpus_size": size, "n_documents": n}
    if n < of:
        record["name"] = f"{data['name']}, {n} documents"
        # of the documents, not of the seed, which may draw others elsewhere
        record["fingerprint"] = key_of(corpus=data["fingerprint"], documents=digest_of(subset))
    return record


# --- Labelled inputs, each searched among the others ----------------------------------------------

LEAST = 3
"""Fewest inputs of a self-retrieval: itself, a first and a runner-up."""


def neighbours_of(opened: Opened) -> Opened:
    """Read labelled data as a search of every input among the others, by cosine.

    Raises:
        DataError: there are fewer than LEAST inputs.
    """
    (inputs,), data = opened.reading.sides, opened.data
    if len(inputs.ids) < LEAST:
        raise DataError(f"{data['name']} has {len(inputs.ids)} inputs to search among; expected at least {LEAST}")
    search = Search(
        queries=inputs,
        documents=inputs if opened.pair.query_only else None,
        similarity=Similarity.COSINE,
        excluded=np.arange(len(inputs.ids)),
        calibration=opened.reading.calibration,
        source=opened.reading.source,
        record={"reading": "self-retrieval"},
        dataset=opened.reading.dataset,
    )
    described = {
        **{key: data[key] for key in ("inputs", "split", "fingerprint", "path")},
        "name": f"{data['name']}-self",
        "kind": "self-retrieval",
        "n_queries": data["n_inputs"],
        "n_documents": data["n_inputs"],
        "warnings": [f"every input searches the others of {data['name']}, itself left out"],
    }
    return replace(opened, reading=search, data=described)
