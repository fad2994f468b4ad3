"""The start-up hook, which calls quantdrift after a harness module was imported.

Harnesses such as mteb have no plugin mechanism, so `quantdrift.pth` (from Python 3.15 on `quantdrift.start`, PEP 829)
calls `install` whenever Python starts. `install` puts one finder in front of `sys.meta_path`; right after a module of
`WATCHED` has run, its function is called with it. `QUANTDRIFT_HOOK=0` switches all of this off, and `quantdrift
doctor` says what is active.

Every start of Python pays for this file, so it holds only what a start needs: a finder that says "not mine". What
happens when a watched module is imported is in `_hook_notify`.
"""

from __future__ import annotations

import _thread
import os
import sys

TYPE_CHECKING = False  # typing's own would import typing, which costs more than this whole file
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

OFF_SWITCH = "QUANTDRIFT_HOOK"

#: Harness module -> "package.module:function" of ours, called with the module after it has run.
WATCHED: dict[str, str] = {
    "mteb.models.get_model_meta": "quantdrift_mteb.hooks:on_models_imported",
    "mteb.evaluate": "quantdrift_mteb.hooks:on_evaluate_imported",
    "mteb.get_tasks": "quantdrift_mteb.hooks:on_tasks_imported",
    "lm_eval.models": "quantdrift_lm_eval.hooks:on_models_imported",
    "lm_eval.evaluator": "quantdrift_lm_eval.hooks:on_evaluator_imported",
}

_installing = _thread.allocate_lock()


class HookFinder:
    """Finds the watched modules; every other name costs one dict lookup.

    The hook's state is kept here and not in the module, so that it outlasts a reload.

    Attributes:
        started_by: "pth", "start" or "manual".
        watched: the table of watched modules.
        patched: the watched modules whose function has run, in that order.
        errors: watched module -> the error its function ended in.
    """

    is_quantdrift_hook = True
    off_switch = OFF_SWITCH

    def __init__(self, started_by: str) -> None:
        self.started_by, self.watched = started_by, WATCHED
        self.patched: list[str] = []
        self.errors: dict[str, str] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the other finders with a wrapped loader; None for names that are not watched."""
        if fullname not in WATCHED or switched_off():
            return None
        try:
            from quantdrift import _hook_notify  # noqa: PLC0415 - a plain start must not pay for it

            return _hook_notify.find_spec(self, fullname, path, target)
        except Exception:  # quantdrift was uninstalled or upgraded meanwhile; the other finders answer
            return None


def install(started_by: str = "manual") -> bool:
    """Install the finder once; call the functions of harness modules that are imported already."""
    if switched_off():
        return False
    with _installing:
        finder = installed_finder()
        if finder is None:
            finder = HookFinder(started_by)
            sys.meta_path.insert(0, finder)
    for name in WATCHED:
        if name in sys.modules and name not in finder.patched and name not in finder.errors:
            try:
                from quantdrift import _hook_notify  # noqa: PLC0415 - as above

                _hook_notify.notify(finder, name, sys.modules[name])
            except Exception as error:  # as above
                finder.errors[name] = type(error).__name__
    return True


def start() -> None:
    """Install the hook, as `quantdrift.start` names it; Python 3.15 may call it more than once."""
    install("start")


def switched_off() -> bool:
    """Return whether the environment variable `QUANTDRIFT_HOOK` switches the hook off."""
    return os.environ.get(OFF_SWITCH, "").strip().lower() in ("0", "off", "false", "no")


def installed_finder() -> HookFinder | None:
    """Return the installed finder, with its state in this process."""
    # By mark and not by class: after a reload of this module the class is another one.
    finders: list[Any] = list(sys.meta_path)
    for finder in finders:
        if getattr(finder, "is_quantdrift_hook", False):
            ours: HookFinder = finder
            return ours
    return None
