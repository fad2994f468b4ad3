"""Where a run is written if the user names no folder, and what is said of a run that lies there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from quantdrift.display import note
from quantdrift.errors import RunError
from quantdrift.records import read_json
from quantdrift.runs import read_run
from quantdrift.spec import Spec, Versus

RUNS = Path("quantdrift-runs")
_DIGITS = 8
"""Of a fingerprint, in a folder's name."""


class Named(Protocol):
    """Data of either kind."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    @property
    def fingerprint(self) -> str:
        """Digest of all that is in it."""
        ...


def default_place(pair: Spec | Versus, dataset: Named, ending: str = "", *, root: Path = RUNS) -> Path:
    """The folder for runs of a pair on a dataset, under quantdrift-runs.

    Other data may have the same name. Whoever comes second gets a folder of their own, which is
    said on standard error: a run never takes the place of one on other data.

    Args:
        pair: what is measured.
        dataset: on what.
        ending: of the name, for what is not the run of `quantdrift run`.
        root: the folder above.
    """
    name = f"{_slug_of(pair)}_on_{_slug(dataset.name)}"
    place = root / f"{name}{ending}"
    others = _data_of(place) - {dataset.fingerprint}
    if not others:
        return place
    own = root / f"{name}-{dataset.fingerprint[:_DIGITS]}{ending}"
    note(f"{place} holds a run on other data named {dataset.name}; this one goes to {own}")
    return own


def earlier_run(place: Path) -> Mapping[str, Any] | None:
    """The record of the run that lies in a folder; None where there is none."""
    try:
        return read_run(place).record
    except RunError:
        return None


def tell_replaced(earlier: Mapping[str, Any] | None) -> None:
    """Say on standard error which run was replaced, if one was."""
    if earlier is None:
        return
    when = str(earlier.get("times", {}).get("finished", "an unknown time"))
    data = earlier.get("data", {}).get("name", "unknown data")
    note(f"replaced the run of {when} ({earlier.get('spec', 'unknown spec')} on {data})")


def _data_of(place: Path) -> set[str]:
    """Fingerprints of the whole data of the runs in a folder and right below it."""
    found = set()
    for record in (place / "run.json", *place.glob("*/run.json")):
        try:
            data = read_json(record)["data"]
            part = data.get("corpus_size") or {}
            found.add(str(part.get("corpus_fingerprint") or data["fingerprint"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # not a run; writing one there says so
    return found


def _slug_of(pair: Spec | Versus) -> str:
    if isinstance(pair, Versus):
        return f"{_slug(pair.reference)}_vs_{_slug(pair.candidate)}"
    return _slug(str(pair))


def _slug(text: str) -> str:
    """The text as a file name that every file system takes; ./model gives that of model."""
    return re.sub(r"[^A-Za-z0-9.@+=_-]+", "_", text).strip("._") or "run"
