"""The one runner: a run that is asked for is found, or measured now. Torch is loaded where something is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantdrift.asking.ask import Ask, finished
from quantdrift.base.progress import Progress
from quantdrift.candidate.refusals import check_pair
from quantdrift.models.inputs import Settings
from quantdrift.models.store import EmbeddingStore
from quantdrift.runs.folder import Run, check_place

if TYPE_CHECKING:
    from quantdrift.asking.opening import Opened


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
    **loading: Any,
) -> Run:
    """The run of a place, if it answers what is asked; else one that is measured now.

    Args:
        ask: what is asked; where `opened` is given also its fingerprint alone, None if it has none.
        place: of the run folder; it may hold an earlier run, nothing else.
        settings: how inputs are put through.
        store: where embeddings are kept, and layers that were calibrated.
        progress: where progress is shown.
        opened: opens the pair; by default the ask's pair is checked against its data and opened for them.
        reuse: whether a finished run is taken; None where a change of the models would be seen.
        found: called where one is.
        record: what run.json says besides.
        loading: how the pair is loaded, `opening.Loading`.

    Raises:
        QuantDriftError: the pair cannot be measured on these data, or the place holds something else.
    """
    if opened is None:
        opened = _opening(ask, settings, store, loading)
    check_place(place.absolute())
    said = dict(record or {})
    if not isinstance(ask, Ask) or reuse or (reuse is None and ask.certain):
        said["cell"] = ask.fingerprint if isinstance(ask, Ask) else ask
        run = finished(place.absolute(), said["cell"])[1]
        if run is not None:
            if found is not None:
                found()
            return run
    from quantdrift.asking.run import measured_run  # noqa: PLC0415 -- torch

    return measured_run(opened(), out=place, settings=settings, store=store, progress=progress, **said)


def _opening(ask: Ask | str | None, settings: Settings, store: EmbeddingStore, loading: Any) -> Callable[[], Opened]:
    """What opens a pair for its data, once the two are known to go together."""
    assert isinstance(ask, Ask)  # there is nothing else to open
    assert ask.dataset is not None  # likewise
    pair, dataset, shortlist = ask.pair, ask.dataset, ask.shortlist
    check_pair(pair, dataset, reranks=shortlist is not None, loaded="models" in loading)

    def opened() -> Opened:
        from quantdrift.asking.opening import open_pair  # noqa: PLC0415 -- torch

        return open_pair(pair, dataset, shortlist=shortlist, root=store.root, **settings.loading, **loading)

    return opened
