"""An lm-eval that does not look as expected."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from quantdrift_lm_eval import hooks


@pytest.mark.parametrize(
    ("change", "content", "told"),
    [
        (hooks.on_models_imported, {}, "MODEL_MAPPING"),
        (hooks.on_evaluator_imported, {}, "no function evaluate"),
        (hooks.on_evaluator_imported, {"evaluate": lambda lm, task_dict: None}, "no parameter log_samples"),
    ],
)
def test_a_module_that_looks_different_is_left_alone(change: Any, content: dict[str, Any], told: str) -> None:
    module: Any = SimpleNamespace(__name__="lm_eval.module", **content)
    with pytest.raises(TypeError, match=told):
        change(module)
    assert vars(module) == {"__name__": "lm_eval.module", **content}
