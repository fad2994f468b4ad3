"""What each file of a model may say: keys that are listed, of a type and in range."""

from typing import Any

import pytest
from pydantic import BaseModel

from quantdrift.base.errors import UnsupportedError
from quantdrift.models.schemas import CONFIG, MODELS, MODULES, TRANSFORMER, check_settings

MODEL = MODELS["SentenceTransformer"]


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        (MODEL, {"prompts": {"query": "a" * 70_000}}, "prompts.query"),
        (MODEL, {"prompts": {"document": 5}}, "prompts.document"),
        (MODEL, {"truncate_dim": "x"}, "truncate_dim"),
        (MODEL, {"truncate_dim": 0}, "truncate_dim"),
        *((TRANSFORMER, {"max_seq_length": length}, "max_seq_length") for length in (-1, 0, "x", True, 1e9)),
        *(
            (TRANSFORMER, {"modality_config": {"text": {"method": method, "method_output_name": None}}}, "method")
            for method in ("save_pretrained", "__init__", "push_to_hub", "init_weights", "forward\n")
        ),
        *(
            (CONFIG, settings, "activation_f.*got 'torch.hub.os.getpid'")
            for settings in (
                {"sentence_transformers": {"activation_fn": "torch.hub.os.getpid"}},
                {"sbert_ce_default_activation_function": "torch.hub.os.getpid"},
            )
        ),
        (MODULES["Dense"], {"in_features": 100_000, "out_features": 100_000}, "in_features"),
        (TRANSFORMER, {"transformer_task": "x"}, "transformer_task"),
        (TRANSFORMER, {"module_output_name": "x"}, "module_output_name"),
        (TRANSFORMER, {"processing_kwargs": {"text": {"max_length": 10**9}}}, "max_length"),
        (TRANSFORMER, {"processing_kwargs": {"common": {"pad_to_multiple_of": 10**9}}}, "pad_to_multiple_of"),
    ],
)
def test_settings_have_types_and_ranges(kind: type[BaseModel], settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"x\.json cannot be used: .*{said}.*Correct it"):
        check_settings(settings, kind, "x.json")


@pytest.mark.parametrize("name", ["modules.activation.Sigmoid", "modules.linear.Identity", "Tanh"])
def test_activations_of_torch_are_taken(name: str) -> None:
    for said in ({"activation_fn": f"torch.nn.{name}"}, {"activation_fn": None}, {}):
        check_settings({"sentence_transformers": {**said, "version": 5}}, CONFIG, "config.json")
