"""What a pair inside mteb calibrates on, for each way in which mteb runs a model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from datasets import Dataset
from mteb.types import PromptType
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from quantdrift.calibration.sample import calibration_file, draw_sample, read_texts
from quantdrift.errors import UnsupportedError
from quantdrift.measurement.embeddings import default_store, digest_of
from quantdrift.measurement.inputs import Inputs
from quantdrift.pair import QuantizedPair
from quantdrift.progress import Silent, Terminal
from quantdrift.spec import Scheme
from quantdrift_mteb.encoding import description_of, inputs_of

__all__ = ["Encoded", "file_inputs", "prepare_search"]

Call = tuple[Any, Any, dict[str, Any]]
"""Dataset, collate function and other arguments of a call of a model's `encode`."""

OPENING = 12
"""Words of a document that stand for a query, where a model reads both together."""


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
    file = calibration_file(scheme)
    if file is None:
        return None
    return inputs_of(model, call, "document", _corpus_of(read_texts(file)))


def prepare_search(pair: QuantizedPair, searcher: Any, call: Any) -> None:
    """Calibrate a pair that reads query and document together, or has an index of its own.

    No query is ever used: each calibration document is searched for by its own first words.

    Args:
        pair: the model, in the reference arm.
        searcher: mteb's search model.
        call: the search, a SearchCall.

    Raises:
        UnsupportedError: the corpus is not text.
        DataError: the scheme's calibration file cannot be used.
    """
    if not pair.needs_calibration:
        return
    file = calibration_file(pair.scheme)
    corpus = call.corpus if file is None else _corpus_of(read_texts(file))
    if "text" not in corpus.column_names:
        raise UnsupportedError(
            f"{pair.scheme} calibrates on documents, and those of {call.task_metadata.name} are "
            "not text, which this model's own search cannot calibrate on; use rtn or hqq"
        )

    def run(rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
        documents = corpus.select(rows.tolist())
        queries = _openings(documents, call.queries)
        shortlist = {name: [name] for name in documents["id"]}
        part = replace(
            call,
            corpus=documents,
            queries=queries,
            top_ranked=None if call.top_ranked is None else shortlist,
            encode_kwargs={
                **call.encode_kwargs,
                "batch_size": batch_size,
                "show_progress_bar": False,
            },
        )
        part.run(searcher, top_k=1)
        return np.zeros((len(rows), 0), dtype=np.float32)

    texts = corpus["text"]
    inputs = Inputs(
        role="document",
        ids=list(corpus["id"]),
        encode=run,
        key={
            "model": description_of(searcher),
            "task": call.task_metadata.name,
            "texts": digest_of([str(text) for text in texts]),
            "opening": OPENING,
        },
        lengths=np.array([len(str(text)) for text in texts], dtype=np.int64),
    )
    sample = draw_sample(inputs, pair.scheme, call.batch_size)
    pair.prepare(sample, root=default_store().root, progress=call.progress)


def _corpus_of(texts: list[str]) -> Dataset:
    ids = [f"calibration-{number}" for number in range(len(texts))]
    return Dataset.from_dict({"id": ids, "title": [""] * len(texts), "text": texts})


def _openings(documents: Any, queries: Any) -> Dataset:
    """Queries made of documents: their ids and first words, in the columns that queries have."""
    columns = {name: [""] * len(documents) for name in queries.column_names}
    columns["id"] = list(documents["id"])
    columns["text"] = [" ".join(str(text).split()[:OPENING]) or "." for text in documents["text"]]
    return Dataset.from_dict(columns)


@dataclass(slots=True)
class Encoded:
    """What the reference was given to encode in a task that is no search.

    Attributes:
        calls: those that were not for queries.
    """

    calls: list[Call] = field(default_factory=list)

    def note(self, loader: Any, kwargs: dict[str, Any]) -> None:
        """Remember a call."""
        dataset = getattr(loader, "dataset", None)
        if kwargs.get("prompt_type") != PromptType.query and hasattr(dataset, "select"):
            self.calls.append((dataset, loader.collate_fn, kwargs))

    def prepare(self, pair: QuantizedPair, model: Any, name: str) -> None:
        """Calibrate the pair on inputs drawn from all calls; labels play no part.

        Args:
            pair: the model, in the reference arm.
            model: mteb's encoder.
            name: of the task.

        Raises:
            UnsupportedError: nothing was encoded that could be drawn from.
        """
        if not self.calls:
            raise UnsupportedError(
                f"{pair.scheme} calibrates on what {name} encodes, but nothing came by that could "
                "be drawn from; give texts with +calib=FILE, or use rtn or hqq"
            )
        calls = self.calls
        if (file := calibration_file(pair.scheme)) is not None:
            calls = [(Dataset.from_dict({"text": read_texts(file)}), None, calls[0][2])]
        starts = np.cumsum([0, *(len(dataset) for dataset, _, _ in calls)])

        def run(rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
            for number, (dataset, collate, kwargs) in enumerate(calls):
                own = rows[(rows >= starts[number]) & (rows < starts[number + 1])] - starts[number]
                if len(own):
                    chunk: DataLoader[Any] = DataLoader(
                        dataset.select(own.tolist()), batch_size=batch_size, collate_fn=collate
                    )
                    quiet = {**kwargs, "batch_size": batch_size, "show_progress_bar": False}
                    model.encode(chunk, **quiet)
            return np.zeros((len(rows), 0), dtype=np.float32)

        inputs = Inputs(
            role="document",
            ids=[str(number) for number in range(int(starts[-1]))],
            encode=run,
            key=_key(model, name, calls),
        )
        kwargs = calls[0][2]
        sample = draw_sample(inputs, pair.scheme, int(kwargs.get("batch_size", 32)))
        progress = Terminal() if kwargs.get("show_progress_bar", True) else Silent()
        pair.prepare(sample, root=default_store().root, progress=progress)


def _key(model: Any, name: str, calls: list[Call]) -> dict[str, Any] | None:
    """What decides the inputs, where they are text."""
    if not all("text" in dataset.column_names for dataset, _, _ in calls):
        return None
    texts = [str(text) for dataset, _, _ in calls for text in dataset["text"]]
    return {"model": description_of(model), "task": name, "texts": digest_of(texts)}
