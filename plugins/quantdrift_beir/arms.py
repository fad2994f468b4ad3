"""What a search that runs once per arm needs of either arm: weights, an index of its own."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import numpy as np

from quantdrift.engine.calibration.sample import draw_sample
from quantdrift.engine.store import default_store
from quantdrift.errors import UnsupportedError
from quantdrift.progress import Silent, Terminal
from quantdrift_beir.inputs import calibration_inputs, document_inputs, ids_and_rows
from quantdrift_beir.pairs import QuantizedPair, held_pair

PROBE = 2
"""Documents that are run with an eye on which layers they reach."""

KEPT = "_quantdrift_arms"
"""Attribute of a search object, where the arms' own search objects are kept."""


def arms_of(searcher: Any, pair: QuantizedPair) -> tuple[Any, Any]:
    """A search object for each arm, so that the index of one is not searched by the other.

    Args:
        searcher: as the user has it.
        pair: the model that it holds.

    Returns:
        Of the reference and of the candidate; with the indexes of an earlier search of this pair.

    Raises:
        UnsupportedError: it holds an index that is not known.
    """
    kept: tuple[Any, Any] | None = vars(searcher).get(KEPT)
    index = getattr(searcher, "faiss_index", None)
    ours = kept is not None and held_pair(kept[1]) is pair and getattr(kept[1], "faiss_index", None) is index
    if index is not None and not ours and not pair.pair.query_only:
        raise UnsupportedError(
            f"this {type(searcher).__name__} holds an index already, and which arm embedded it "
            "cannot be told. Search with a new one, or keep the index at full precision with "
            f"{pair.spec.scheme}+query"
        )
    arms = copy.copy(searcher), copy.copy(searcher)
    for one in arms:
        vars(one).pop(KEPT, None)
        for name in ("mapping", "rev_mapping", "results"):  # dicts that a search changes in place
            if isinstance(vars(one).get(name), dict):
                setattr(one, name, {} if name == "results" else dict(vars(one)[name]))
    if ours and kept is not None and index is not None:
        arms[0].faiss_index = kept[0].faiss_index
    return arms


def calibrate(pair: QuantizedPair, corpus: Any, searcher: Any) -> None:
    """Calibrate on documents, where the scheme needs that.

    Args:
        pair: the model, in the reference arm.
        corpus: what is searched.
        searcher: the search object.

    Raises:
        QuantDriftError: the scheme cannot be made.
    """
    if not pair.pair.needs_calibration:
        return
    inputs = calibration_inputs(pair, {}, wanted=False)
    if inputs is None:
        inputs = document_inputs(pair, *ids_and_rows(corpus), {}, wanted=False)
    shown = getattr(searcher, "show_progress_bar", True)
    pair.pair.prepare(
        draw_sample(inputs, pair.spec.scheme, batch_size_of(searcher)),
        root=default_store().root,
        progress=Terminal() if shown else Silent(),
    )


def watch(pair: QuantizedPair, corpus: Any) -> None:
    """Embed a few documents with an eye on which layers they reach; it is for the record only.

    Args:
        pair: the model, in the reference arm.
        corpus: what is searched.
    """
    ids, rows = ids_and_rows(corpus)
    inputs = document_inputs(pair, ids[:PROBE], rows[:PROBE], {}, wanted=False)
    with suppress(Exception), pair.pair.observed():
        inputs.encode(np.arange(len(inputs.ids)), PROBE)


def batch_size_of(searcher: Any) -> int:
    """Inputs per forward pass."""
    return int(getattr(searcher, "batch_size", None) or 32)
