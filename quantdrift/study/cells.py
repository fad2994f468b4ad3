"""Measures the cells of a study: each model is loaded once, and its reference outputs are made once for all schemes."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from quantdrift.asking.ask import attempted
from quantdrift.asking.ensure import ensure
from quantdrift.asking.opening import LocalModel, Opened, load_model, load_searching, open_pair
from quantdrift.asking.streamed_search import open_streamed
from quantdrift.asking.subsets import neighbours_of, part_of
from quantdrift.base.errors import DiskError, QuantDriftError, UnsupportedError
from quantdrift.base.progress import Progress
from quantdrift.candidate.refusals import check_pair
from quantdrift.data.images import contents_of
from quantdrift.data.labelled import ClassificationDataset
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.data.streamed import StreamedDataset
from quantdrift.finished.shortlist import Shortlist
from quantdrift.measuring.flow import Flow
from quantdrift.measuring.problem import hold_out
from quantdrift.models.store import EmbeddingStore, digest_of
from quantdrift.scoring.streamed import score_embeddings
from quantdrift.spec.grammar import chooses, parse
from quantdrift.study.folder import FailedCell, StudyFolder
from quantdrift.study.plan import Cell
from quantdrift.study.sources import Data, settings_of

_WAIT = 2.0
"""Seconds between two looks at a cell that another process is at."""


def _groups(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """The cells of each model on each corpus; those of one model follow each other."""
    keyed: dict[str, dict[str, list[Cell]]] = {}
    for cell in cells:
        of_model = keyed.setdefault(cell.spec.model, {})
        of_model.setdefault(cell.data.whole.model_dump_json(), []).append(cell)
    for of_model in keyed.values():
        yield from of_model.values()


@dataclass(slots=True)
class _Models:
    """The model that is loaded; another one takes its place."""

    device: str | None
    _asked: Mapping[str, Any] = field(default_factory=dict)
    _model: LocalModel | QuantDriftError | None = None

    def of(self, cell: Cell, data: Data) -> LocalModel:
        dataset = data.of(cell.data)
        asked: dict[str, Any] = {
            "name": cell.spec.model,
            "kind": dataset.kind if isinstance(dataset, ClassificationDataset) else None,
            "reranks": cell.data.retriever is not None,
            "device": cell.settings.device or self.device,
            **settings_of(cell).loading,
        }
        if asked != self._asked:
            self._asked, self._model = asked, None  # the earlier one is let go before the next is loaded
            try:
                self._model = load_model(**asked)
            except QuantDriftError as error:
                self._model = error
        if isinstance(self._model, QuantDriftError):
            raise self._model
        assert self._model is not None  # it was loaded
        return self._model


@dataclass(slots=True)
class _Shortlists:
    """Shortlists that cross-encoders rerank: a retriever's first documents at full precision, found once."""

    store: EmbeddingStore
    progress: Progress
    device: str | None
    _found: dict[str, Shortlist] = field(default_factory=dict)

    def of(self, cell: Cell, data: Data) -> Shortlist | None:
        """The shortlists of a cell's data; None where models search themselves."""
        entry = cell.data
        if entry.retriever is None:
            return None
        dataset = data.of(entry)
        if not isinstance(dataset, RetrievalDataset):
            raise UnsupportedError(f"{entry.called} is no search, so no retriever finds anything in it; leave it out")
        key = entry.model_dump_json()
        if key not in self._found:
            settings = replace(settings_of(cell), k=entry.top)
            model = load_searching(entry.retriever, device=cell.settings.device or self.device, **settings.loading)
            opened = open_pair(parse(f"{entry.retriever}@W8"), dataset, models=(model, None))
            flow = Flow(pair=opened.pair, settings=settings, store=self.store, progress=self.progress)
            queries, documents = flow.reference(opened.reading.ready(flow))
            arms, k = (queries, queries, documents, documents), min(entry.top, len(documents))
            state = score_embeddings(*arms, similarity=model.similarity, k=k, excluded=dataset.own_rows)
            names, rows = dataset.document_ids, state.reference_top()[0].tolist()
            lists = (tuple(names[row] for row in ranked if row >= 0) for ranked in rows)
            documents = dict(zip(dataset.query_ids, lists, strict=True))
            named = {"retriever": entry.retriever, "retriever_fingerprint": opened.pair.fingerprint}
            self._found[key] = Shortlist(documents=documents, top=entry.top, record={"from": "retriever", **named})
        return self._found[key]


def run_cells(
    cells: Sequence[Cell],
    folder: StudyFolder,
    data: Data,
    *,
    store: EmbeddingStore,
    progress: Progress,
    announce: Callable[[Cell], None],
    failed: Callable[[Cell, FailedCell], None],
    device: str | None = None,
    streaming: Mapping[str, Any] = {},
) -> None:
    """Measure cells and write their run folders.

    A cell that fails is kept with its reason, and the others go on. One at which the process ended without a word comes
    after the others; a second such end is a failure too. A cell that another process is at is left to it, and looked at
    again in the end.

    Raises:
        DiskError: no cell can be written or kept any more.
    """
    models, busy = _Models(device), []
    shortlists = _Shortlists(store, progress, device)

    def attempt(cell: Cell) -> None:
        announce(cell)
        try:
            settings, out, key = settings_of(cell), folder.place(cell.name), cell.fingerprint
            entry, whole = cell.data, data.known(cell.data)
            in_parts = entry.retriever or entry.neighbours or entry.sizes or cell.settings.held_out
            with attempted(folder.note(cell), key):
                opened: Callable[[], Opened]
                if isinstance(whole, StreamedDataset) and not in_parts:  # `_opened` refuses parts of such data
                    means: Any = {"settings": settings, "store": store, "device": cell.settings.device or device}
                    opened = partial(open_streamed, cell.spec, whole, **means, **streaming)
                else:
                    opened = partial(_opened, cell, models.of(cell, data), data, shortlists.of(cell, data))
                ensure(key, out, settings=settings, store=store, progress=progress, opened=opened)
            folder.forget_failure(cell)
        except DiskError:
            raise
        except (Exception, SystemExit) as error:  # whatever else it is, the other cells go on
            failed(cell, folder.fail(cell, error))

    def taken(cell: Cell) -> bool:
        """Whether no other process is at a cell; then it is measured, unless one has been since."""
        with folder.holding(cell.name) as held:
            if held and folder.run(cell) is None and folder.failure(cell) is None:
                attempt(cell)
            return held

    noted = {cell.name: folder.note(cell).exists() for cell in cells}  # it ended without a word, or runs elsewhere
    for last in (False, True):
        for group in _groups([cell for cell in cells if noted[cell.name] is last]):
            busy += [cell for cell in group if not taken(cell)]
    for cell in busy:
        while not taken(cell):
            time.sleep(_WAIT)


def _opened(cell: Cell, model: LocalModel, data: Data, lists: Shortlist | None = None) -> Opened:
    dataset, among = data.of(cell.data), cell.data.neighbours
    searched = replace(cell.spec.scheme, query_only=False)  # neighbours are a search, whose query side may be alone
    check_pair(replace(cell.spec, scheme=searched) if among else cell.spec, dataset, reranks=lists is not None)
    if among and not isinstance(dataset, ClassificationDataset):
        raise UnsupportedError(f"{cell.data.called} is a search; neighbours are of labelled data. Leave neighbours out")
    if among and chooses(cell.spec.scheme):
        raise UnsupportedError(
            f"{cell.spec}: {cell.spec.scheme.criterion} chooses widths by the gaps of classes or of a search in "
            "documents, not of neighbours; name a stored allocation, or one width"
        )
    asked, rows = cell.settings.held_out, None
    if asked is not None and isinstance(dataset, RetrievalDataset):  # of classes, criteria look at the train part only
        rows = hold_out([*contents_of(dataset.queries)], share=asked.share, seed=asked.seed)
    opened = open_pair(cell.spec, dataset, shortlist=lists, neighbours=among, held_out=rows, models=(model, None))
    if among:
        opened = neighbours_of(opened)
    if cell.data.sizes:
        opened = part_of(opened, dataset, cell.data.sizes[0])
    if asked is None or rows is None or not isinstance(dataset, RetrievalDataset):
        return opened
    digest = digest_of([dataset.query_ids[row] for row in rows.tolist()])
    record = {**asked.model_dump(), "n_queries": len(rows), "of": len(dataset.queries), "digest": digest}
    reading = opened.reading
    return replace(opened, reading=replace(reading, held_out=rows, record={**reading.record, "held_out": record}))
