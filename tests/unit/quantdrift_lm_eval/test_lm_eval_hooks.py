from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from quantdrift_lm_eval import hooks


class Registry(dict[str, Any]):
    def register(self, name: str, *, target: Any) -> None:
        assert name not in self
        self[name] = target


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    found = Registry(hf="lm_eval.models.huggingface:HFLM")
    monkeypatch.setattr("lm_eval.api.registry.model_registry", found)
    return found


def module(name: str, **content: Any) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(content)
    return made


def test_the_name_is_registered_once_and_loaded_later(registry: Registry) -> None:
    models = module("lm_eval.models", MODEL_MAPPING={})
    for _ in range(2):
        hooks.on_models_imported(models)
    assert registry == {"hf": registry["hf"], "quantdrift": hooks.TARGET}


def test_a_module_that_looks_different_is_left_alone(registry: Registry) -> None:
    with pytest.raises(TypeError, match="MODEL_MAPPING"):
        hooks.on_models_imported(module("lm_eval.models"))
    assert list(registry) == ["hf"]
    with pytest.raises(TypeError, match="no function evaluate"):
        hooks.on_evaluator_imported(module("lm_eval.evaluator"))
    other = module("lm_eval.evaluator", evaluate=lambda lm, task_dict: None)
    with pytest.raises(TypeError, match="no parameter log_samples"):
        hooks.on_evaluator_imported(other)
