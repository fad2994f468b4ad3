"""The page of whatever a path names: a run, a study, or what a gate said."""

from importlib import import_module
from pathlib import Path
from typing import cast

from quantdrift.base.errors import QuantDriftError
from quantdrift.cli import FEATURES
from quantdrift.gate.result import read_result
from quantdrift.report import gate, run, study
from quantdrift.report.page import Page
from quantdrift.runs.folder import RECORD, read_run
from quantdrift.study.folder import STUDY, open_study


def page_of(what: Path, *, data: Path | None = None, task: str | None = None, k: int = 1) -> Page:
    """The page of a run, a study or what a gate said."""
    folder = open_study(what) if what.name == STUDY or (what / STUDY).is_file() else None
    is_gate = what.is_file() and what.name not in {RECORD, STUDY}
    if folder is not None and (data or task or k > 1):
        raise QuantDriftError("--data, --task and -k are for runs; a study knows its data")
    if is_gate and k > 1:
        raise QuantDriftError("-k: cut-offs are for runs; a gate has judged its own")
    if folder is not None:
        page = study.page_of(folder)
        if folder.kind in FEATURES and FEATURES[folder.kind].page:
            return cast(Page, import_module(f"{FEATURES.module(folder.kind)}.page").on_study(page, folder))
        return page
    if is_gate:
        return gate.page_of(read_result(what), data=data, task=task)
    return run.page_of(read_run(what), data=data, task=task, k=k)
