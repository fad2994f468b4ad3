"""Adds a model name to lm-eval when it is imported, and wraps two of its functions.

Stock models are not affected. The functions raise TypeError if lm-eval does not look as expected; the caller turns that
into one warning and leaves lm-eval unchanged.
"""

import importlib
import inspect
from types import ModuleType
from typing import Any

from quantdrift.base.patching import arguments_of, errors_in_one_line, is_pair, wrap

NAME = "quantdrift"
"""Name of our model, as in --model quantdrift."""
TARGET = "quantdrift_lm_eval.model:QuantizedPairLM"


def on_models_imported(module: ModuleType) -> None:
    """Register the model `quantdrift`, which is loaded on use."""
    registry = getattr(importlib.import_module("lm_eval.api.registry"), "model_registry", None)
    if not (registry is not None and hasattr(registry, "register") and hasattr(module, "MODEL_MAPPING")):
        raise TypeError("lm_eval.models has no MODEL_MAPPING and model_registry")
    if NAME not in registry:  # versions that read entry points have it already
        registry.register(NAME, target=TARGET)


def on_evaluator_imported(module: ModuleType) -> None:
    """Let the evaluation of a pair add its drift to the results."""
    wrap(module, "evaluate", ("lm", "task_dict", "log_samples"), _evaluate)
    wrap(module, "simple_evaluate", ("model", "evaluation_tracker"), _simple_evaluate)


def _evaluate(original: Any, *args: Any, **kwargs: Any) -> Any:
    given = inspect.signature(original).bind(*args, **kwargs)
    lm = given.arguments["lm"]
    if not (is_pair(lm) or is_pair(getattr(lm, "lm", None))):  # a CachingLM has it inside
        return original(*args, **kwargs)
    from quantdrift_lm_eval.evaluation import evaluate_pair  # noqa: PLC0415 -- a stock run must not load it

    return evaluate_pair(original, given)


def _simple_evaluate(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Note where lm-eval will save its results, which only `simple_evaluate` knows."""
    given = arguments_of(original, *args, **kwargs)
    if given["model"] != NAME and not is_pair(given["model"]):
        return original(*args, **kwargs)
    from quantdrift_lm_eval.evaluation import results_at  # noqa: PLC0415 -- as above

    errors_in_one_line()
    with results_at(given["evaluation_tracker"]):
        return original(*args, **kwargs)
