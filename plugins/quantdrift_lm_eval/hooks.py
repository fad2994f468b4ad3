"""What is changed in lm-eval when it is imported: a model name more, and two functions wrapped.

A stock model goes through untouched. Every function here checks that lm-eval looks as expected and
raises if it does not; the caller turns that into one warning and leaves lm-eval alone.
"""

from __future__ import annotations

import functools
import inspect
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from quantdrift.patching import expected, replace

NAME = "quantdrift"
"""Of our model, as in --model quantdrift."""
GROUP = "lm_eval.models"
TARGET = "quantdrift_lm_eval.model:QuantizedPairLM"


def on_models_imported(module: ModuleType) -> None:
    """Let lm-eval know the model `quantdrift`, which is loaded when it is asked for.

    Args:
        module: lm_eval.models, after it has registered its own; a registry that is not empty would
            keep lm-eval from doing that.

    Raises:
        TypeError: it is not the module this was written for.
    """
    registry: Any = getattr(_api_registry(), "model_registry", None)
    if not hasattr(registry, "register") or not hasattr(module, "MODEL_MAPPING"):
        raise TypeError("lm_eval.models has no MODEL_MAPPING and model_registry")
    if NAME not in registry:  # versions that read entry points may have been there before
        registry.register(NAME, target=_placeholder())


def on_evaluator_imported(module: ModuleType) -> None:
    """Let the evaluation of a pair add its drift to the results.

    Args:
        module: lm_eval.evaluator.

    Raises:
        TypeError: it is not the module this was written for.
    """
    evaluate = expected(module, "evaluate", "lm", "task_dict", "log_samples")
    simple = expected(module, "simple_evaluate", "model", "evaluation_tracker")
    if evaluate is not None:
        replace(module, "evaluate", _both_arms(evaluate))
    if simple is not None:
        replace(module, "simple_evaluate", _with_place(simple))


def _both_arms(original: Any) -> Any:
    @functools.wraps(original)
    def evaluate(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(original).bind(*args, **kwargs)
        lm = given.arguments["lm"]
        if not (_is_pair(lm) or _is_pair(getattr(lm, "lm", None))):  # a CachingLM has it inside
            return original(*args, **kwargs)
        from quantdrift_lm_eval.evaluation import evaluate_pair  # noqa: PLC0415 -- a stock run must not load it

        return evaluate_pair(original, given)

    return evaluate


def _with_place(original: Any) -> Any:
    """Remember where lm-eval will save its results: only `simple_evaluate` is told."""

    @functools.wraps(original)
    def simple_evaluate(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        if given["model"] != NAME and not _is_pair(given["model"]):
            return original(*args, **kwargs)
        from quantdrift.patching import errors_in_one_line  # noqa: PLC0415 -- as above
        from quantdrift_lm_eval.place import results_at  # noqa: PLC0415 -- as above

        errors_in_one_line()
        with results_at(given.get("evaluation_tracker")):
            return original(*args, **kwargs)

    return simple_evaluate


def _placeholder() -> EntryPoint | str:
    """As a version that reads entry points would register it: the same twice is no conflict."""
    found = next(iter(entry_points(group=GROUP, name=NAME)), None)
    return TARGET if found is None else found


def _api_registry() -> Any:
    from lm_eval.api import registry  # noqa: PLC0415 -- this is called when lm-eval is there

    return registry


def _is_pair(model: Any) -> bool:
    return getattr(type(model), "is_quantdrift_pair", False) is True
