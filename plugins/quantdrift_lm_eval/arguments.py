"""Reading --model_args: which pair is meant, and what cannot be one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quantdrift.base.errors import UnsupportedError
from quantdrift.engine.layers import find_linears
from quantdrift.spec.grammar import Scheme, Spec, chooses, parse, parse_scheme

EXAMPLE = "--model_args pretrained=NAME,scheme=W4-gptq"
_REFUSED = (
    *("autogptq", "gguf_file", "gptqmodel", "load_in_4bit", "load_in_8bit", "quantization_config"),
    *("peft", "tp_plan"),
)


def read_spec(pretrained: Any, scheme: str | None) -> Spec:
    """The pair that is asked for."""
    if pretrained is None:
        raise UnsupportedError(f"expected a model; got none. Name it: {EXAMPLE}")
    if not isinstance(pretrained, str):
        pretrained = getattr(pretrained, "name_or_path", "") or type(pretrained).__name__
    if scheme is None and "@" not in pretrained:
        raise UnsupportedError(
            f"expected the scheme of the candidate beside pretrained={pretrained}; got none. Name it: {EXAMPLE}, or "
            f"pretrained={pretrained}@W4-gptq"
        )
    spec = parse(pretrained) if scheme is None else Spec(model=pretrained, scheme=parse_scheme(str(scheme)))
    if spec.scheme.query_only or chooses(spec.scheme):
        raise UnsupportedError(
            f"{spec.scheme} needs a search over embeddings, and lm-eval has none. Leave +query out; choose widths with "
            "quantdrift allocate, and name the file: scheme=allocation.json"
        )
    return spec


def refuse_options(options: Mapping[str, Any]) -> None:
    """Refuse arguments of lm-eval's hf model that make no pair."""
    for name in _REFUSED:
        if options.get(name):
            raise UnsupportedError(
                f"{name}={options[name]}: a pair starts from a whole model at full precision, without adapters (merge "
                "them first, with merge_and_unload). Leave it out, and name the scheme"
            )


def without_output_layer(model: Any, scheme: Scheme) -> Scheme:
    """The scheme with +head= for the layer that gives the vocabulary's logits, where it has one.

    That layer is left out as a classification head is; one that is tied to the token embeddings is left out anyway,
    and a head that the user names stays.
    """
    get = getattr(model, "get_output_embeddings", None)
    output = get() if callable(get) else None
    if scheme.option("head") is None and output is not None:
        for layer in find_linears([model]):
            if any(module is output for module in layer.modules):
                return replace(scheme, options=(*scheme.options, ("head", layer.name)))
    return scheme
