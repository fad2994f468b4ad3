"""What the open cells of a study take, told before the first one."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from quantdrift.asking.ask import Ask
from quantdrift.asking.forecast import Forecast, forecast
from quantdrift.base.errors import QuantDriftError, UnsupportedError
from quantdrift.data.retrieval import facts_of
from quantdrift.models.store import EmbeddingStore
from quantdrift.study.plan import Cell
from quantdrift.study.sources import Data, settings_of


def forecasts(
    cells: Sequence[Cell], data: Data, *, store: EmbeddingStore, device: str | None
) -> Iterator[tuple[Cell, Forecast | QuantDriftError]]:
    """Yield what each cell takes, or why that cannot be told.

    The first cell of a model on a corpus embeds for all of them, and the first of a model loads it.
    """
    known: dict[str, Forecast] = {}
    for cell in cells:
        model, entry, settings = cell.spec.model, cell.data, settings_of(cell)
        key, name = f"{model} {entry.model_dump_json()} {settings}", f"{cell.spec} on {entry.called}"
        try:
            if key in known:
                told = replace(known[key], scheme=cell.spec.scheme, kept=True, loaded=True, download=0, name=name)
            elif entry.retriever is not None:
                raise UnsupportedError(f"{entry.called}: what is reranked is found when it is needed: no time is told")
            else:
                dataset, loaded = data.known(entry), any(each.startswith(f"{model} ") for each in known)
                ask = Ask(pair=cell.spec, data=facts_of(dataset), dataset=dataset)
                where = cell.settings.device or device
                told = forecast(ask, settings=settings, store=store, device=where, loaded=loaded)
                if entry.sizes and isinstance(size := entry.sizes[0], int):
                    told = replace(told, sides=(*told.sides[:-1], told.sides[-1].part(size)))
                known[key] = told = replace(told, name=name)
            yield cell, told
        except QuantDriftError as error:
            yield cell, error
