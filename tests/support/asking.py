"""A run that is measured, whatever lies at its place."""

from pathlib import Path
from typing import Any

from quantdrift.asking.ask import Ask
from quantdrift.asking.ensure import ensure
from quantdrift.data.labelled import Dataset
from quantdrift.data.retrieval import facts_of
from quantdrift.finished.shortlist import Shortlist
from quantdrift.runs.folder import Run
from quantdrift.spec.grammar import Spec, Versus


def run_pair(
    pair: Spec | Versus, dataset: Dataset, *, out: Path, shortlist: Shortlist | None = None, **how: Any
) -> Run:
    ask = Ask(pair=pair, data=facts_of(dataset), dataset=dataset, shortlist=shortlist)
    return ensure(ask, out, reuse=False, **how)
