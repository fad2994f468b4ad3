"""What a pair inside mteb calibrates on, for each way in which mteb runs a model."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

import numpy as np
from datasets import Dataset  # type: ignore[import-untyped]  # it ships no types
from mteb.models import EncoderProtocol, SearchEncoderWrapper
from mteb.types import PromptType
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from quantdrift.engine.calibration.sample import calibration_texts, draw_sample
from quantdrift.engine.inputs import Inputs
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.rerank import OPENING, opening_of
from quantdrift.engine.store import default_store
from quantdrift.errors import UnsupportedError
from quantdrift.progress import Silent, Terminal
from quantdrift.spec import Scheme
from quantdrift_mteb.encoding import description_of, digest_of_rows, inputs_of

Call = tuple[Any, Any, dict[str, Any]]
"""Dataset, collate function and other arguments of a call of a model's `encode`."""


def file_inputs(model: Any, call: Any, scheme: Scheme) -> Inputs | None:
    """The texts of a file that the scheme calibrates on, as documents of a search.

    Args:
        model: mteb's encoder.
        call: the search, a SearchCall.
        scheme: as asked for.

    Returns:
        None where the scheme names no file: then the corpus itself is drawn from.

    Raises:
        DataError: the file cannot be used.
    """
    texts = calibration_texts(scheme)
    return None if texts is None else inputs_of(model, call, "document", _corpus_of(texts))


def prepare_search(pair: QuantizedPair, searcher: Any, call: Any) -> None:
    """Calibrate a pair whose search is the model's own.

    What encodes is calibrated on documents. What reads query and document together is calibrated on
    documents that are each asked for by their own first words: no query is ever used.

    Args:
        pair: the model, in the reference arm.
        searcher: mteb's search model.
        call: the search, a SearchCall.

    Raises:
        UnsupportedError: query and document are read together, and the corpus is not text.
        DataError: the scheme's calibration file cannot be used.
    """
    if not pair.needs_calibration:
        return
    texts = calibration_texts(pair.scheme)
    corpus = call.corpus if texts is None else _corpus_of(texts)
    model = searcher.model if isinstance(searcher, SearchEncoderWrapper) else searcher
    if isinstance(model, EncoderProtocol):
        inputs = inputs_of(model, call, "document", corpus, wanted=False)
    else:
        inputs = _asked_for(searcher, call, corpus, pair.scheme)
    sample = draw_sample(inputs, pair.scheme, call.batch_size)
    pair.prepare(sample, root=default_store().root, progress=call.progress)


def _asked_for(searcher: Any, call: Any, corpus: Any, scheme: Scheme) -> Inputs:
    """Documents, each searched for by its first words."""
    if call.task_metadata.get_modalities(PromptType.document) != ["text"]:
        raise UnsupportedError(
            f"{scheme} calibrates on documents, and those of {call.task_metadata.name} are not "
            "text, which this model's own search cannot calibrate on; use rtn or hqq"
        )

    def run(rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
        documents = corpus.select(rows.tolist())
        shortlist = {name: [name] for name in documents["id"]}
        quiet = {**call.encode_kwargs, "batch_size": batch_size, "show_progress_bar": False}
        part = replace(
            call,
            corpus=documents,
            queries=_openings(documents, call.queries),
            top_ranked=None if call.top_ranked is None else shortlist,
            encode_kwargs=quiet,
        )
        # a searcher keeps the corpus between two calls, and batches run side by side
        part.run(copy.copy(searcher), top_k=1)
        return np.zeros((len(rows), 0), dtype=np.float32)

    return Inputs(
        role="document",
        ids=list(corpus["id"]),
        encode=run,
        key={
            "harness": ["mteb", version("mteb")],
            "model": description_of(searcher),
            "task": [call.task_metadata.name, call.task_metadata.prompt, call.hf_subset],
            "texts": digest_of_rows(corpus),
            "opening": [OPENING, call.queries.column_names, call.top_ranked is None],
            "encode": call.encode_kwargs,
        },
        lengths=np.array([len(str(text)) for text in corpus["text"]], dtype=np.int64),
    )


def _corpus_of(texts: list[str]) -> Dataset:
    ids = [f"calibration-{number}" for number in range(len(texts))]
    return Dataset.from_dict({"id": ids, "title": [""] * len(texts), "text": texts})


def _openings(documents: Any, queries: Any) -> Dataset:
    """Queries made of documents: their ids and first words, in the columns that queries have."""
    columns = {name: [""] * len(documents) for name in queries.column_names}
    columns["id"] = list(documents["id"])
    columns["text"] = [opening_of(str(text)) for text in documents["text"]]
    return Dataset.from_dict(columns)


@dataclass(slots=True)
class Encoded:
    """What the reference was given to encode in a task that is no search.

    Attributes:
        calls: those that were not for queries.
        arguments: of any call.
    """

    calls: list[Call] = field(default_factory=list)
    arguments: dict[str, Any] = field(default_factory=dict)

    def note(self, loader: Any, kwargs: dict[str, Any]) -> None:
        """Remember a call."""
        self.arguments = self.arguments or kwargs
        dataset = getattr(loader, "dataset", None)
        if kwargs.get("prompt_type") != PromptType.query and hasattr(dataset, "select"):
            self.calls.append((dataset, loader.collate_fn, kwargs))

    def prepare(self, pair: QuantizedPair, model: Any, name: str) -> None:
        """Calibrate the pair on inputs drawn from all calls, or a file; labels play no part.

        Args:
            pair: the model, in the reference arm.
            model: mteb's encoder.
            name: of the task.

        Raises:
            UnsupportedError: nothing was encoded that could be drawn from.
            DataError: the scheme's calibration file cannot be used.
        """
        calls = self.calls
        if (texts := calibration_texts(pair.scheme)) is not None:
            calls = [(Dataset.from_dict({"text": texts}), None, self.arguments)]
        if not calls:
            raise UnsupportedError(
                f"{pair.scheme} calibrates on what {name} encodes, but nothing came by that could "
                "be drawn from; give texts with +calib=FILE, or use rtn or hqq"
            )
        starts = np.cumsum([0, *(len(dataset) for dataset, _, _ in calls)])
        groups = np.repeat(np.arange(len(calls)), np.diff(starts))

        def run(rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
            number = int(groups[rows[0]])  # a batch is of one call
            dataset, collate, kwargs = calls[number]
            chunk: DataLoader[Any] = DataLoader(
                dataset.select((rows - starts[number]).tolist()), batch_size=batch_size, collate_fn=collate
            )
            model.encode(chunk, **{**kwargs, "batch_size": batch_size, "show_progress_bar": False})
            return np.zeros((len(rows), 0), dtype=np.float32)

        inputs = Inputs(
            role="document", ids=[str(number) for number in range(len(groups))], encode=run, key=_key(model, calls)
        )
        kwargs = self.arguments
        batch_size = int(kwargs.get("batch_size", 32))
        sample = draw_sample(inputs, pair.scheme, batch_size, groups=groups)
        progress = Terminal() if kwargs.get("show_progress_bar", True) else Silent()
        pair.prepare(sample, root=default_store().root, progress=progress)


def _key(model: Any, calls: list[Call]) -> dict[str, Any] | None:
    """What decides the inputs, where they are text alone."""
    if any(dataset.column_names != ["text"] for dataset, _, _ in calls):
        return None
    return {
        "harness": ["mteb", version("mteb")],
        "model": description_of(model),
        "calls": [
            {"texts": digest_of_rows(dataset), **{name: _told(value) for name, value in sorted(kwargs.items())}}
            for dataset, _, kwargs in calls
        ],
    }


def _told(value: Any) -> str:
    """An argument as a string; of a task's metadata what models choose prompts by."""
    name = getattr(value, "name", None)
    return str(value) if name is None else f"{name} {getattr(value, 'prompt', None)}"
