"""What is changed in mteb when it is imported: three names, each wrapped.

Stock models and stock tasks go through untouched. Every function here checks that mteb looks as
expected and raises if it does not; the caller turns that into one warning and leaves mteb alone.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from types import ModuleType
from typing import Any

from quantdrift.patching import errors_in_one_line, expected, replace

PREFIX = "quantdrift:"


def on_models_imported(module: ModuleType) -> None:
    """Let `get_model_meta` know names that begin with `quantdrift:`.

    Args:
        module: mteb.models.get_model_meta.

    Raises:
        TypeError: it is not the function this was written for.
    """
    original = expected(module, "get_model_meta", "model_name", "revision", "fetch_from_hf")
    if original is None:
        return

    @functools.wraps(original)
    def get_model_meta(model_name: str, *args: Any, **kwargs: Any) -> Any:
        if not (isinstance(model_name, str) and model_name.startswith(PREFIX)):
            return original(model_name, *args, **kwargs)
        from quantdrift_mteb.meta import pair_meta  # noqa: PLC0415 -- a stock run must not load it

        errors_in_one_line()
        given = inspect.signature(original).bind(model_name, *args, **kwargs).arguments
        return pair_meta(
            model_name.removeprefix(PREFIX),
            given.get("revision"),
            original,
            experiment_kwargs=given.get("experiment_kwargs"),
        )

    replace(module, "get_model_meta", get_model_meta)


def on_evaluate_imported(module: ModuleType) -> None:
    """Let the evaluation of a pair run both arms and write its drift into the result.

    Args:
        module: mteb.evaluate.

    Raises:
        TypeError: it is not the function this was written for.
    """
    original = expected(module, "_evaluate_task", "model", "task", "cache", "model_meta")
    if original is None:
        return

    @functools.wraps(original)
    def _evaluate_task(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        if not _is_pair(given["model"]):
            _warn_of_wrapped(given["model"])
            return original(*args, **kwargs)
        from quantdrift_mteb.evaluation import both_arms  # noqa: PLC0415 -- as above

        meta = given.get("model_meta") or given["model"].mteb_model_meta
        with both_arms(given["model"], given["task"], given.get("cache"), meta):
            return original(*args, **kwargs)

    replace(module, "_evaluate_task", _evaluate_task)


def on_tasks_imported(module: ModuleType) -> None:
    """Let mteb find our tasks by name; its list stays as it is, and so does what is filtered by it.

    Args:
        module: mteb.get_tasks.

    Raises:
        TypeError: it is not the module this was written for.
    """
    if not isinstance(getattr(module, "_TASKS_REGISTRY", None), dict):
        raise TypeError("mteb.get_tasks has no _TASKS_REGISTRY dict")
    tasks = importlib.import_module("quantdrift_tasks.mteb_tasks")  # it imports mteb
    if hasattr(tasks, "TASKS"):
        _add_tasks(module, tasks.TASKS)
        return
    # That module is being imported right now, and importing mteb is the first thing it does.
    for name in ("get_task", "get_tasks"):
        original = expected(module, name)
        if original is not None:
            replace(module, name, _after_adding(module, tasks, original))


def _after_adding(module: ModuleType, tasks: ModuleType, original: Any) -> Any:
    @functools.wraps(original)
    def get(*args: Any, **kwargs: Any) -> Any:
        _add_tasks(module, getattr(tasks, "TASKS", ()))
        return original(*args, **kwargs)

    return get


def _add_tasks(module: Any, tasks: tuple[Any, ...]) -> None:
    for task in tasks:
        module._TASKS_REGISTRY.setdefault(task.metadata.name, task)


def _is_pair(model: Any) -> bool:
    # of the type: an object of somebody else's may raise anything when it is asked for a name
    return getattr(type(model), "is_quantdrift_pair", False) is True


def _warn_of_wrapped(model: Any) -> None:
    """A wrapper of mteb's hides the pair: then only the candidate is evaluated."""
    if any(_is_pair(value) for value in getattr(model, "__dict__", {}).values()):
        warnings.warn(
            f"quantdrift: the pair is inside a {type(model).__name__}, so only its candidate is "
            "evaluated and no drift is measured",
            stacklevel=3,
        )
