"""The pair that --model_args name, and arguments that are refused."""

from types import ModuleType

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

pytest.importorskip("lm_eval")

from quantdrift.base.errors import DataError, QuantDriftError, SpecError, UnsupportedError
from quantdrift.candidate.calibration.candidate import widths_for
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.spec.grammar import parse_scheme
from quantdrift_lm_eval.hooks import on_models_imported
from quantdrift_lm_eval.model import read_spec, refuse_options, without_output_layer
from support.allocations import allocation, decoder


@pytest.mark.parametrize(
    ("pretrained", "scheme", "spec"),
    [
        ("org/name", "W4", "org/name@W4-g128-rtn"),
        ("org/name@W4-gptq", None, "org/name@W4-g128-gptq"),
        ("at@home/name", "W3-channel+seed=3", "at@home/name@W3-channel-rtn+seed=3"),
        ("at@home/name@W3", None, "at@home/name@W3-g128-rtn"),
        ("org/name", "W3.5+gap", "org/name@W3.5-g128-rtn+gap"),
    ],
)
def test_a_pair_is_named_by_one_argument_or_by_two(pretrained: str, scheme: str | None, spec: str) -> None:
    assert str(read_spec(pretrained, scheme)) == spec


@pytest.mark.parametrize(
    ("pretrained", "scheme", "says"),
    [
        (None, "W4", "Name it: --model_args pretrained=NAME,scheme=W4-gptq"),
        ("org/name", "W4-qptq", "gptq"),
        ("org/name", "W4+query", "Leave +query out"),
        ("org/name", None, "expected the scheme"),
    ],
)
def test_what_is_no_pair_is_refused_with_the_way_out(pretrained: str | None, scheme: str | None, says: str) -> None:
    with pytest.raises(QuantDriftError) as caught:
        read_spec(pretrained, scheme)
    assert says in str(caught.value)
    assert isinstance(caught.value, SpecError | UnsupportedError)


@pytest.mark.parametrize("option", ["peft", "autogptq", "gptqmodel", "gguf_file", "load_in_4bit", "tp_plan"])
def test_arguments_of_the_hf_model_that_make_no_pair_are_refused(option: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{option}=x: "):
        refuse_options({option: "x"})
    refuse_options({option: None, "dtype": "float32", "parallelize": True})


def test_an_lm_eval_that_looks_different_is_left_alone() -> None:
    with pytest.raises(TypeError, match="MODEL_MAPPING"):
        on_models_imported(ModuleType("lm_eval.module"))


def test_the_layer_of_the_logits_stays_at_full_precision() -> None:
    sizes = {"vocab_size": 24, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=1, tie_word_embeddings=False))
    scheme = without_output_layer(model, parse_scheme("W4"))
    assert str(scheme) == "W4-g128-rtn+head=lm_head"
    pair = QuantizedPair([model], scheme)
    before = model.lm_head.weight.clone()
    with pair.candidate():
        assert torch.equal(model.lm_head.weight, before)
        assert "lm_head" in pair.left_out
    assert len(pair.layers) == 7


def test_widths_chosen_for_an_embedding_model_fit_no_language_model() -> None:
    sizes = {"vocab_size": 24, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    pair = QuantizedPair([LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=1))], "W4+head=lm_head")
    as_embedder = {f"0.{name}": width for name, width in decoder({}).items()}  # as sentence-transformers names layers
    with pytest.raises(DataError, match="differ in their layers"):
        widths_for(allocation(as_embedder), pair.layers, pair.scheme, pair.fingerprint)
