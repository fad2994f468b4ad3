"""Wraps a few functions of mteb when it is imported.

Stock models and tasks are not affected. The functions raise TypeError if mteb does not look as expected; the caller
turns that into one warning and leaves mteb unchanged.
"""

import importlib
import warnings
from types import ModuleType
from typing import Any

from quantdrift.base.patching import arguments_of, errors_in_one_line, is_pair, wrap


def on_models_imported(module: ModuleType) -> None:
    """Let `get_model_meta` know names that begin with `quantdrift:`."""
    wrap(module, "get_model_meta", ("model_name", "revision", "fetch_from_hf"), _model_meta)


def on_evaluate_imported(module: ModuleType) -> None:
    """Let the evaluation of a pair run both arms and write its drift into the result."""
    wrap(module, "_evaluate_task", ("model", "task", "cache", "model_meta"), _evaluate)


def on_tasks_imported(module: ModuleType) -> None:
    """Let mteb find our tasks by name; its lists of tasks do not change."""
    if not isinstance(getattr(module, "_TASKS_REGISTRY", None), dict):
        raise TypeError("mteb.get_tasks has no _TASKS_REGISTRY dict")

    def after_adding(original: Any, *args: Any, **kwargs: Any) -> Any:
        for task in importlib.import_module("quantdrift_tasks.mteb_tasks").TASKS:  # it imports mteb
            module._TASKS_REGISTRY.setdefault(task.metadata.name, task)
        return original(*args, **kwargs)

    for name in ("get_task", "get_tasks"):
        wrap(module, name, (), after_adding)


def _model_meta(original: Any, *args: Any, **kwargs: Any) -> Any:
    given = arguments_of(original, *args, **kwargs)
    name = given["model_name"]
    if not (isinstance(name, str) and (name.startswith("quantdrift:") or "@" in name)):
        return original(*args, **kwargs)
    from quantdrift.spec.grammar import pair_named  # noqa: PLC0415 -- a stock run must not load it

    errors_in_one_line()
    if (spec := pair_named(name)) is None:
        return original(*args, **kwargs)
    from quantdrift_mteb.meta import pair_meta  # noqa: PLC0415 -- as above

    return pair_meta(spec, given["revision"], original, experiment_kwargs=given.get("experiment_kwargs"))


def _evaluate(original: Any, *args: Any, **kwargs: Any) -> Any:
    given = arguments_of(original, *args, **kwargs)
    model = given["model"]
    if is_pair(model):
        from quantdrift_mteb.evaluation import both_arms  # noqa: PLC0415 -- as above

        with both_arms(model, given["task"], given["cache"], given["model_meta"] or model.mteb_model_meta):
            return original(*args, **kwargs)
    if any(is_pair(value) for value in getattr(model, "__dict__", {}).values()):
        warnings.warn(  # a wrapper of mteb's hides the pair
            f"quantdrift: the pair is inside a {type(model).__name__}, so only its candidate is evaluated and no drift "
            "is measured",
            stacklevel=3,
        )
    return original(*args, **kwargs)
