"""The one runner: it finds the run of an `Ask`, or measures it. Torch is loaded only to measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantdrift.asking.ask import Ask, finished
from quantdrift.base.paths import keep_out_of_git
from quantdrift.base.progress import Progress
from quantdrift.candidate.refusals import check_pair, refuse_in_batches
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.data.streamed import StreamedDataset
from quantdrift.models.files.checkpoint import full_precision_source
from quantdrift.models.files.kinds import refuse_unreachable
from quantdrift.models.inputs import Settings
from quantdrift.models.store import EmbeddingStore
from quantdrift.runs.folder import Run, check_place
from quantdrift.spec.grammar import is_endpoint

if TYPE_CHECKING:
    from quantdrift.asking.opening import Opened
    from quantdrift.evidence.record import Evidence


def ensure(
    ask: Ask | str | None,
    place: Path,
    *,
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    opened: Callable[[], Opened] | None = None,
    reuse: bool | None = None,
    found: Callable[[], None] | None = None,
    record: Mapping[str, Any] | None = None,
    enough: Callable[[Evidence], bool] | None = None,
    before: Callable[[], None] = lambda: None,
    **loading: Any,
) -> Run:
    """Return the finished run of an `Ask` at a place, or measure it there now.

    Args:
        ask: the measurement; with `opened`, its fingerprint is enough, or None if it has none.
        place: the run folder; it may hold an earlier run, and nothing else.
        settings: how inputs go through the models.
        store: where embeddings and calibrated layers are kept.
        progress: where progress is shown.
        opened: opens the pair; by default the pair is checked against the data and opened for them.
        reuse: whether a finished run is taken; None for only where a change of the models' files would show.
        found: called when a finished run is taken.
        record: additional entries of run.json.
        enough: stops the measurement before the last input, as in `Flow.measure_until`; `ask` has to tell it apart.
        before: called before the pair is opened, where there is something to measure.
        loading: how the pair is loaded: `opening.Loading`, or arguments of `open_streamed`.

    Raises:
        QuantDriftError: the pair cannot be measured on these data, or the place holds something else.
    """
    is_named = opened is None and "models" not in loading
    if opened is None:
        assert isinstance(ask, Ask)  # without a pair there is nothing to open
        opened = _opening(ask, settings, store, loading)
        if enough is not None:
            refuse_in_batches(ask.pair, searches=ask.shortlist is None and isinstance(ask.dataset, RetrievalDataset))
    check_place(place.absolute())
    entries = dict(record or {})
    if not isinstance(ask, Ask) or reuse or (reuse is None and ask.certain):
        entries["cell"] = ask.fingerprint if isinstance(ask, Ask) else ask
        run = finished(place.absolute(), entries["cell"])[1]
        if run is not None:
            if found is not None:
                found()
            return run
    if is_named and isinstance(ask, Ask) and not is_endpoint(ask.pair.model):
        refuse_unreachable(full_precision_source(ask.pair.model), loading.get("revision"))
    before()
    from quantdrift.asking.run import measured_run  # noqa: PLC0415 -- torch

    pair = opened()
    if enough is not None:
        pair = replace(pair, reading=replace(pair.reading, enough=enough))
    run = measured_run(pair, out=place, settings=settings, store=store, progress=progress, **entries)
    keep_out_of_git(place)
    return run


def _opening(ask: Ask, settings: Settings, store: EmbeddingStore, loading: Any) -> Callable[[], Opened]:
    """Check that a pair goes with its data, and return the function that opens it for them."""
    pair, dataset, shortlist = ask.pair, ask.dataset, ask.shortlist
    assert dataset is not None  # whoever leaves the opening to `ensure` gives the data
    if isinstance(dataset, StreamedDataset):
        from quantdrift.asking.streamed_search import open_streamed  # noqa: PLC0415 -- torch

        return partial(open_streamed, pair, dataset, settings=settings, store=store, **loading)
    check_pair(pair, dataset, reranks=shortlist is not None, loaded="models" in loading)

    def opened() -> Opened:
        from quantdrift.asking.opening import open_pair  # noqa: PLC0415 -- torch

        return open_pair(pair, dataset, shortlist=shortlist, root=store.root, **settings.loading, **loading)

    return opened
