"""Search in the files of both arms, as beir searches files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from beir.retrieval.search.dense.util import (  # type: ignore[import-untyped]  # it ships no types
    pickle_load,
)

from quantdrift.display import shown
from quantdrift.errors import DataError
from quantdrift.measurement.assembly import assemble
from quantdrift.measurement.embeddings import key_of
from quantdrift.scoring import Similarity, score_embeddings
from quantdrift_beir.marker import REFERENCE, Marker, named_files, read_marker, told_of
from quantdrift_beir.pairs import QuantizedPair
from quantdrift_beir.results import DEPTH, Drift, PairedResults, say
from quantdrift_beir.search import excluded, of_arm

__all__ = ["search_both_files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """Queries' embeddings, and then the documents' in the order of the corpus.

    Attributes:
        own: the candidate's.
        others: the reference's, likewise.
        marker: whose they are.
    """

    own: Sequence[Path]
    others: Sequence[Path]
    marker: Marker


def search_both_files(
    original: Callable[..., Any], searcher: Any, pair: QuantizedPair, given: Mapping[str, Any]
) -> PairedResults:
    """DenseRetrievalExactSearch.search_from_files, in the files of both arms.

    Args:
        original: beir's own method.
        searcher: the search object.
        pair: the model that it holds; it embeds nothing here.
        given: the arguments of the call, by name.

    Returns:
        The candidate's results, as beir finds them, with the drift over the whole corpus; while a
        search is run once per arm, that arm's.

    Raises:
        DataError: there are no files, or not those of this pair.
    """
    pair.restore()  # inside a session an arm's weights may be in place
    files = _files_of(pair, given)
    if not pair.in_session:
        found = _searched(original, searcher, files, given)
        say(pair.spec, found.evidence, shown=searcher.show_progress_bar)
        searcher.results = found
        return found
    asked = key_of(
        whose=files.marker.whose, files=[str(file) for file in files.own], top_k=given["top_k"]
    )
    if asked not in pair.found:
        pair.found[asked] = _searched(original, searcher, files, given)
    results = searcher.results = of_arm(pair.found[asked], pair.arm)
    return results


def _files_of(pair: QuantizedPair, given: Mapping[str, Any]) -> _Files:
    """The files that a search is of, in the order of the corpus."""
    file = Path(given["query_embeddings_file"])
    parts = [Path(part) for part in given["corpus_embeddings_files"]]
    folder = file.parent
    marker = read_marker(folder)
    if marker is None:
        raise DataError(
            f"{folder} holds no embeddings of a pair ({told_of(folder)}); expected those that "
            "encode(corpus, queries, ...) of this search has written"
        )
    expected = {
        "scheme": str(pair.spec.scheme),
        "reference": pair.pair.fingerprint,
        "named": named_files(pair),
    }
    if any(marker.whose[name] != value for name, value in expected.items()):
        raise DataError(
            f"{folder} holds embeddings {told_of(folder)}; expected {pair.spec}, with the "
            "same weights and, where the scheme names a file, the same content of it. Encode again "
            "into another folder, or with overwrite=True"
        )
    if sorted(part.name for part in parts) != sorted(marker.shards):
        raise DataError(
            f"expected the files {shown(', '.join(marker.shards), 200)} of {folder}; got "
            f"{', '.join(part.name for part in parts) or 'none'}"
        )
    # in the order of the corpus, whatever order a folder is listed in
    own = [file, *(folder / name for name in marker.shards)]
    others = [part.parent / REFERENCE / part.name for part in own]
    if missing := [str(part) for part in (*own, *others) if not part.is_file()]:
        raise DataError(
            f"expected the embeddings of both arms; {', '.join(missing)} is missing. Encode again "
            "with overwrite=True"
        )
    return _Files(own=own, others=others, marker=marker)


def _searched(
    original: Callable[..., Any],
    searcher: Any,
    files: _Files,
    given: Mapping[str, Any],
) -> PairedResults:
    found = []
    for arm in (files.others, files.own):
        arguments = {
            **given,
            "query_embeddings_file": str(arm[0]),
            "corpus_embeddings_files": [str(file) for file in arm[1:]],
        }
        results = original(searcher, **arguments)
        found.append({query: dict(scores) for query, scores in results.items()})
    query_ids, document_ids, vectors = _loaded(files.others, files.own)
    state = score_embeddings(
        vectors[0][0],
        vectors[1][0],
        vectors[0][1],
        vectors[1][1],
        similarity=Similarity.DOT,
        k=DEPTH,
        excluded=excluded(query_ids, document_ids),
    )
    evidence = assemble(state, input_ids=query_ids, item_ids=document_ids)
    kept = set(files.marker.kept)
    rows = [row for row, name in enumerate(query_ids) if name in kept]
    evidence = evidence if len(rows) == len(query_ids) else evidence.part(np.array(rows))
    return PairedResults(
        found[1], Drift(evidence=evidence, reference=found[0], made=files.marker.made)
    )


def _loaded(
    reference: Sequence[Path], candidate: Sequence[Path]
) -> tuple[list[str], list[str], list[tuple[Any, Any]]]:
    """Ids of queries and documents, and both sides' embeddings of either arm."""
    sides = []
    for files in (reference, candidate):
        queries, query_ids = pickle_load(str(files[0]))
        parts = [pickle_load(str(file)) for file in files[1:]]
        document_ids = [name for _, ids in parts for name in ids]
        documents = np.concatenate([vectors for vectors, _ in parts])
        sides.append((list(query_ids), document_ids, (queries, documents)))
    if sides[0][:2] != sides[1][:2]:
        raise DataError(
            f"the embeddings below {candidate[0].parent} are of other texts in the two arms; "
            "encode them again with overwrite=True"
        )
    return sides[0][0], sides[0][1], [sides[0][2], sides[1][2]]
