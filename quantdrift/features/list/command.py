"""`quantdrift list`: list the names that commands take."""

from collections.abc import Mapping
from math import isinf
from typing import Any

from quantdrift.base.errors import UnknownNameError
from quantdrift.cli.options import argument, prints
from quantdrift.data.labelled import task_names
from quantdrift.features.doctor.checks import components
from quantdrift.kinds.encoder import KINDS
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.kinds.stage import STAGES
from quantdrift.metrics import FAMILIES, members
from quantdrift.models.files.packaged import PACKAGED
from quantdrift.show.output import Output
from quantdrift.show.tables import Grid
from quantdrift.spec.names import ALIASES
from quantdrift.study.plan import cells_of
from quantdrift.study.suites import load_suite, suite_names

_ONLY_IN_JSON = {"section", "range", "interval"}
"""Columns that are too wide for a table."""
_MORE = {
    "metrics": (
        "Other cut-offs (gold_lost@3, set_kept@20, separation_quantile@5) and levels (coverage@0.2) are possible too.",
        "reference.ndcg@10 is the value of the reference, change.ndcg@10 the difference, and relative.ndcg@10 that "
        "difference as a share.",
        "flip@1:separation=0.05..0.1 is over the inputs with a separation of at least 0.05 and below 0.1; "
        "harm:contenders=5.. over those with 5 contenders or more.",
        "Every value has a 95 % interval. For the range and the kind of interval: quantdrift list metrics --json",
    ),
    "suites": (
        "The cells are those of the suite and of its offline variant: quantdrift study run --suite NAME [--offline].",
        "Tables and figures of the paper, from a checkout: python -m quantdrift_paper tables quantdrift-runs/NAME",
    ),
    "quantizers": ("The first library is used; choose another with +backend=.",),
}


@prints("json")
def command(*, what: str = argument("WHAT: metrics, models, quantizers, stages, encoders, tasks, suites.")) -> Output:
    """List metrics, short names of models, quantizers, stages of a scheme, kinds of encoders, tasks or suites.

    For example: quantdrift list metrics

    More: docs/reference/metrics.md
    """
    lists = {
        "metrics": _metrics,
        "models": _models,
        "quantizers": _quantizers,
        "stages": _stages,
        "encoders": _encoders,
        "tasks": lambda: [{"task": name} for name in task_names()],
        "suites": _suites,
    }
    if what not in lists:
        raise UnknownNameError("list", what, lists, hint=f"(expected {', '.join(lists)})")
    listed = lists[what]()
    rows = [_in_words(row) for row in listed] if what == "quantizers" else listed
    head = [name for name in (rows[0] if rows else ()) if name not in _ONLY_IN_JSON]
    grid = Grid(head=head, rows=[[str(row[name]) for name in head] for row in rows], words=head)
    return Output(data=listed, grids=[grid], lines=_MORE.get(what, ()))


def _metrics() -> list[dict[str, Any]]:
    return [
        {
            "metric": ", ".join(str(member) for member in members(family)),
            "section": family.section,
            "better": family.direction,
            "range": f"{family.low:g} to {'∞' if isinf(family.high) else f'{family.high:g}'}",
            "unit": family.unit,
            "interval": family.uncertainty,
            "labels": "yes" if family.needs_labels else "no",
            "meaning": family.summary,
        }
        for family in FAMILIES.values()
    ]


def _models() -> list[dict[str, Any]]:
    packages = {alias: model.install for alias, model in PACKAGED.items()}
    return [
        {"name": alias, "model": hub_id, "also as a package": packages.get(alias, "")}
        for alias, hub_id in ALIASES.items()
    ]


def _quantizers() -> list[dict[str, Any]]:
    component = {part["name"]: part for part in components()}
    rows = []
    for name, entry in QUANTIZERS.items():
        names = dict.fromkeys([package.name for package in entry.packages] or QUANTIZERS.versions(entry))
        versions = {package: component[package]["version"] for package in names}
        default = next(iter(versions), None)
        rows.append(
            {
                "quantizer": name,
                "calibrated": entry.calibrated,
                "libraries": list(versions),
                "versions": versions,
                "available": default is None or versions[default] is not None,
                "install": default and component[default]["install"],
            }
        )
    return rows


def _stages() -> list[dict[str, Any]]:
    return [
        {"stage": name, "what": stage.what, "option": f"+{key}=", "value": option.values}
        for name, stage in STAGES.items()
        for key, option in stage.options.items()
    ]


def _encoders() -> list[dict[str, Any]]:
    return [
        {"kind": name, "what": kind.what, "measured on": ", ".join(kind.uses), "files": ", ".join(kind.files)}
        for name, kind in KINDS.items()
    ]


def _in_words(row: Mapping[str, Any]) -> dict[str, str]:
    """A quantizer as a row of the table."""
    libraries = [f"{name} {version or '(missing)'}" for name, version in row["versions"].items()]
    return {
        "quantizer": row["quantizer"],
        "calibrated": "on documents" if row["calibrated"] else "no",
        "by": ", ".join(libraries) or "built in",
        "to install": row["install"] or "",
    }


def _suites() -> list[dict[str, Any]]:
    suites = []
    for name in suite_names():
        suite = load_suite(name)
        offline = None if suite.offline is None else len(cells_of(suite.study(offline=True)))
        suites.append(
            {
                "suite": name,
                "cells": len(cells_of(suite.study())),
                "offline": "-" if offline is None else offline,
                "about": suite.about,
                "shows": ", ".join(suite.shows),
            }
        )
    return suites
