"""Embeddings of both arms in files, as beir writes and searches them.

The candidate's lie where beir would write them, the reference's in a folder `reference` below.
A file beside them says whose they are, so that those of another scheme are never searched.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from beir.retrieval.search.dense.util import (  # type: ignore[import-untyped]  # it ships no types
    pickle_load,
    save_embeddings,
)

from quantdrift.errors import DataError, RunError
from quantdrift.measurement.assembly import assemble
from quantdrift.measurement.embeddings import default_store
from quantdrift.measurement.record import now
from quantdrift.measurement.retrieval import Settings, not_calibrated_on
from quantdrift.measurement.steps import Job
from quantdrift.scoring import Similarity, score_embeddings
from quantdrift_beir.inputs import (
    calibration_inputs,
    document_inputs,
    ids_and_rows,
    query_inputs,
)
from quantdrift_beir.marker import (
    MARKER,
    REFERENCE,
    files_in,
    read_marker,
    told_of,
    whose_of,
)
from quantdrift_beir.pairs import QuantizedPair
from quantdrift_beir.record import Made, made_by
from quantdrift_beir.results import DEPTH, Drift, PairedResults, say
from quantdrift_beir.search import excluded, options_of, progress_of, warnings_of

__all__ = ["encode_both", "search_both_files"]

logger = logging.getLogger(__name__)


def encode_both(
    original: Callable[..., Any], searcher: Any, pair: QuantizedPair, given: Mapping[str, Any]
) -> None:
    """DenseRetrievalExactSearch.encode, by both arms.

    Args:
        original: beir's own method; it is not used.
        searcher: the search object.
        pair: the model that it holds.
        given: the arguments of the call, by name.

    Raises:
        RunError: other embeddings lie there, and `overwrite` is not given.
        QuantDriftError: the scheme cannot be made, or an embedding is not finite.
    """
    folder, pattern = Path(given["encode_output_path"]), given["corpus_filename"]
    corpus, queries = given["corpus"], given["queries"]
    names, size = list(corpus), int(searcher.corpus_chunk_size)
    shards = [pattern.replace("*", str(at // size)) for at in range(0, len(names), size)]
    if len(set(shards)) < len(shards):
        raise RunError(
            f"corpus_filename {pattern!r} is one file, and there are {len(shards)} parts of at "
            f"most {size:,} documents; expected a name with a *, such as corpus.*.pkl"
        )
    whose = whose_of(pair, corpus, queries, given)
    there = files_in(folder, given["query_filename"], pattern)
    if there and not given["overwrite"]:
        ours = read_marker(folder)
        if ours.get("whose") == whose and ours["shards"] == shards:
            wanted = {given["query_filename"], *shards}
            if len(there) == 2 * len(wanted) and {file.name for file in there} == wanted:
                logger.info("Embeddings already exist at %s, skipping encoding.", folder)
                return
        raise RunError(
            f"{folder} holds other embeddings ({told_of(folder)}); expected an empty folder, or "
            f"those of {pair.spec} for these texts. Give another encode_output_path, or "
            "overwrite=True"
        )
    for file in (*there, folder / MARKER):
        file.unlink(missing_ok=True)
    started, left_out = now(), excluded(list(queries), names)
    options = options_of(searcher)
    job = Job(
        pair=pair.pair,
        queries=query_inputs(pair, queries, options),
        documents=document_inputs(pair, *ids_and_rows(corpus), options),
        similarity=Similarity.DOT,  # what beir searches files by
        settings=Settings(k=DEPTH, batch_size=int(searcher.batch_size), noise_floor=False),
        store=default_store(),
        progress=progress_of(searcher),
        excluded=left_out,
        calibration=calibration_inputs(pair, options),
    )
    arms = job.embed()
    for below, (vectors, documents) in ((REFERENCE, arms.reference), ("", arms.candidate)):
        place = folder / below
        _write(place / given["query_filename"], vectors, list(queries))
        for number, name in enumerate(shards):
            part = slice(number * size, (number + 1) * size)
            _write(place / name, documents[part], names[part])
    kept = not_calibrated_on(pair.pair, list(queries))
    made = made_by(
        pair.pair,
        pair.spec,
        arms.fingerprint,
        settings=job.settings,
        candidate_fingerprint=arms.candidate_fingerprint,
        reading={"similarity": str(Similarity.DOT), "search": "from files"},
        data={
            "n_queries": len(queries),
            "n_documents": len(corpus),
            "fingerprint": whose["data"],
            "warnings": warnings_of(left_out),
        },
        left_out=len(queries) - len(kept),
        started=started,
        seconds=job.seconds,
    )
    ids = list(queries)
    record = {
        "whose": whose,
        "shards": shards,
        "kept": [ids[row] for row in kept],
        "made": made.to_json(),
    }
    (folder / MARKER).write_text(json.dumps(record, indent=1), encoding="utf-8")


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
        The candidate's results, as beir finds them, with the drift over the whole corpus.

    Raises:
        DataError: there are no files, or not those of this pair.
    """
    own = [Path(given["query_embeddings_file"]), *map(Path, given["corpus_embeddings_files"])]
    marker = read_marker(own[0].parent)
    if len(own) == 1 or not marker:
        raise DataError(
            f"{own[0].parent} holds no embeddings of a pair ({told_of(own[0].parent)}); expected "
            "those that encode(corpus, queries, ...) of this search has written"
        )
    whose = marker["whose"]
    if (whose["scheme"], whose["reference"]) != (str(pair.spec.scheme), pair.pair.fingerprint):
        raise DataError(
            f"{own[0].parent} holds embeddings of {whose['spec']}; expected {pair.spec}, with the "
            "same weights. Encode again into another folder, or with overwrite=True"
        )
    if sorted(file.name for file in own[1:]) != sorted(marker["shards"]):
        raise DataError(
            f"expected the files {', '.join(marker['shards'])} of {own[0].parent}; got "
            f"{', '.join(file.name for file in own[1:])}"
        )
    # in the order of the corpus, whatever order a folder is listed in
    own = [own[0], *(own[0].parent / name for name in marker["shards"])]
    others = [file.parent / REFERENCE / file.name for file in own]
    found = []
    for files in (others, own):
        arguments = {
            **given,
            "query_embeddings_file": str(files[0]),
            "corpus_embeddings_files": [str(file) for file in files[1:]],
        }
        results = original(searcher, **arguments)
        found.append({query: dict(scores) for query, scores in results.items()})
    query_ids, document_ids, vectors = _loaded(others, own)
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
    kept = set(marker["kept"])
    rows = [row for row, name in enumerate(query_ids) if name in kept]
    evidence = evidence if len(rows) == len(query_ids) else evidence.part(np.array(rows))
    drift = Drift(evidence=evidence, reference=found[0], made=Made(**marker["made"]))
    say(pair.spec, evidence, shown=searcher.show_progress_bar)
    searcher.results = PairedResults(found[1], drift)
    answer: PairedResults = searcher.results
    return answer


def _write(file: Path, vectors: Any, ids: Sequence[str]) -> None:
    try:
        save_embeddings(np.asarray(vectors, dtype=np.float32), list(ids), str(file))
    except OSError as error:
        raise RunError(f"embeddings cannot be written to {file}: {error.strerror}") from error


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
