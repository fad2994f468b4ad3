"""Allocations as runtimes read them: each format's text, and what each refuses."""

import json
import re
import shlex
from typing import Any

import pytest

from quantdrift.allocation.record import Allocation
from quantdrift.base.errors import UnsupportedError
from quantdrift.features.export.formats import EXPORTERS, export_allocation, exporter, runtime_layers, usage_of
from support import allocations
from support.allocations import decoder, encoder

QUERY, KEY = (f"0.model.encoder.layer.0.attention.self.{part}" for part in ("query", "key"))
Q, OUT, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.o_proj", "model.layers.0.mlp.down_proj"


def allocation(widths: dict[str, int], **changes: Any) -> Allocation:
    return allocations.allocation(widths, **{"widths": (3, 4, 8), **changes})


def text_of(given: Allocation, name: str) -> str:
    return export_allocation(given, exporter(name))[0]


def content(given: Allocation, name: str) -> Any:
    return json.loads(text_of(given, name))


def test_a_name_is_the_path_inside_the_transformers_model() -> None:
    stored = {"0.model.a.0.x": 4, "0.auto_model.b.0.x": 4, "model.layers.3.q_proj": 4, "2.linear": 16}  # unquantized
    assert [layer.name for layer in runtime_layers(allocation(stored))] == ["a.0.x", "b.0.x", "model.layers.3.q_proj"]


@pytest.mark.parametrize(
    ("widths", "why"),
    [
        (encoder({"2.linear": 4}), r"^2\.linear .*: outside .* --keep '2\.linear'"),
        ({"a.experts.down_proj.3": 4}, "part of a larger module"),
        ({"0.model.a.fc": 4, "1.model.a.fc": 4}, "outside"),
        ({"a.fc": 16}, "none of this one is quantized"),
    ],
)
def test_what_no_format_can_name_is_refused(widths: dict[str, int], why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        runtime_layers(allocation(widths))


@pytest.mark.parametrize("name", EXPORTERS)
def test_every_layer_keeps_its_width_in_every_format(name: str) -> None:
    changed = {f"0.model.encoder.layer.{block}.output.dense": 8 for block in range(2)}
    text = text_of(allocation(encoder(changed, blocks=2)), name)
    seen = re.findall(r'(?:bits": |"int|=q)([48])', text)
    per_layer = {"gptqmodel": (7, 2), "compressed_tensors": (1, 1)}  # one for a unit, a width
    assert (seen.count("4"), seen.count("8")) == per_layer.get(name, (10, 2))
    assert text.endswith("\n")
    usage = usage_of(exporter(name), "a 'b'.json")
    if name == "llama_cpp":
        assert shlex.split(usage.replace("$(cat ", "").replace(")", ""))[1] == "a 'b'.json"
    else:
        assert "a 'b'.json" in compile(usage, name, "exec").co_consts


def test_a_whole_channel_is_written_as_each_format_calls_it() -> None:
    given = allocation(decoder({}), group_size=None)
    assert content(given, "gptqmodel")["group_size"] == -1
    recipe = content(allocation(decoder({DOWN: 8, OUT: 16}), group_size=None), "compressed_tensors")
    groups = [(group["weights"], len(group["targets"])) for group in recipe["config_groups"].values()]
    assert [(weights["num_bits"], n_targets) for weights, n_targets in groups] == [(4, 5), (8, 1)]
    assert all(weights["strategy"] == "channel" and "group_size" not in weights for weights, _ in groups)
    assert recipe["ignore"] == [r"re:^(?:.*\.)?model\.layers\.0\.self_attn\.o_proj$"]
    assert '"_type": "PerAxis"' in text_of(given, "torchao")


def test_untied_layers_are_refused_where_the_runtime_fuses_and_else_said() -> None:
    given = allocation(encoder({QUERY: 8}))
    with pytest.raises(UnsupportedError, match=r"query \(8 .*key \(4 .*units=fused"):
        text_of(given, "compressed_tensors")
    assert "vLLM and SGLang cannot run it" in export_allocation(given, exporter("gptqmodel"))[1]
    dynamic = content(given, "gptqmodel")["dynamic"]
    assert dynamic[r"^(?:.*\.)?encoder\.layer\.0\.attention\.self\.query$"]["bits"] == 8
    assert len(dynamic) == 6


def test_llama_cpp_gets_the_names_of_tensors_and_types_whose_blocks_divide_the_inputs() -> None:
    """384 inputs are no multiple of the 256 that a K-type needs, but of 32."""
    names = ("0.model.encoder.layer.7.attention.self.key", "0.model.transformer.layer.2.ffn.lin1", OUT)
    given = dict(zip(names, (4, 8, 16), strict=True))
    first = "--tensor-type blk.7.attn_k.weight="
    rest = "--tensor-type blk.2.ffn_up.weight=q8_0\n--tensor-type blk.0.attn_output.weight=f16\n"
    for size, kind in ((256, "q4_K"), (384, "q4_0")):
        assert text_of(allocation(given, shape=(size, size)), "llama_cpp") == f"{first}{kind}\n{rest}"
    with pytest.raises(UnsupportedError, match=r"o_proj \(3 bits\).*384 inputs"):
        text_of(allocation({OUT: 3}, shape=(384, 384)), "llama_cpp")


@pytest.mark.parametrize(
    ("name", "layer", "width", "group_size", "said"),
    [
        ("llama_cpp", Q, 7, 32, r"widths of 2, 3, 4, 5, 6, 8; .*\+widths=4,8"),
        ("gptqmodel", Q, 4, 48, "not of 48"),
        ("torchao", Q, 4, 96, "the first has 256"),
        ("llama_cpp", "h.0.attn.c_attn", 4, 32, "is not known"),
    ],
)
def test_what_a_format_cannot_express(name: str, layer: str, width: int, group_size: int | None, said: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"{re.escape(layer)} \(\d bits\): .*{said}"):
        text_of(allocation({layer: width}, group_size=group_size), name)
