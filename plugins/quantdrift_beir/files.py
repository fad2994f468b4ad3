"""Embeddings of both arms in files, as beir writes them.

The candidate's lie where beir would write them, the reference's in a folder `reference` below.
A file beside them says whose they are, so that those of another scheme are never searched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from beir.retrieval.search.dense.util import (  # type: ignore[import-untyped]  # it ships no types
    save_embeddings,
)

from quantdrift.errors import RunError
from quantdrift.measurement.embeddings import default_store
from quantdrift.measurement.record import now
from quantdrift.measurement.retrieval import Settings, not_calibrated_on
from quantdrift.measurement.steps import Job
from quantdrift.scoring import Similarity
from quantdrift_beir.inputs import (
    calibration_inputs,
    document_inputs,
    ids_and_rows,
    query_inputs,
)
from quantdrift_beir.marker import (
    MARKER,
    REFERENCE,
    Marker,
    files_in,
    read_marker,
    told_of,
    whose_of,
    write_marker,
)
from quantdrift_beir.pairs import QuantizedPair
from quantdrift_beir.record import made_by
from quantdrift_beir.results import DEPTH
from quantdrift_beir.search import excluded, options_of, progress_of, warnings_of

__all__ = ["encode_both"]

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
    pair.restore()  # inside a session an arm's weights may be in place
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
        if ours is not None and (ours.whose, ours.shards) == (whose, shards):
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
            "warnings": [*warnings_of(left_out), *job.notes],
        },
        left_out=len(queries) - len(kept),
        started=started,
        seconds=job.seconds,
    )
    ids = list(queries)
    kept_ids = [ids[row] for row in kept]
    write_marker(folder, Marker(whose=whose, shards=shards, kept=kept_ids, made=made))


def _write(file: Path, vectors: Any, ids: Sequence[str]) -> None:
    try:
        save_embeddings(np.asarray(vectors, dtype=np.float32), list(ids), str(file))
    except OSError as error:
        raise RunError(f"embeddings cannot be written to {file}: {error.strerror}") from error
