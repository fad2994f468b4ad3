"""Reading --model_args: which pair is meant, and what cannot be one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quantdrift.engine.layers import find_linears
from quantdrift.errors import SpecError, UnsupportedError
from quantdrift.spec import Scheme, Spec, chooses, parse, parse_scheme

EXAMPLE = "--model_args pretrained=NAME,scheme=W4-gptq"
_QUANTIZED = "a pair starts from full precision. Leave it out, and name the scheme"
_REFUSED = {
    "peft": "an adapter beside the weights cannot be quantized with them; merge it into the model (merge_and_unload) "
    "and name the folder of that",
    "autogptq": _QUANTIZED,
    "gptqmodel": _QUANTIZED,
    "gguf_file": _QUANTIZED,
    "load_in_4bit": _QUANTIZED,
    "load_in_8bit": _QUANTIZED,
    "quantization_config": _QUANTIZED,
    "tp_plan": "weights that are split over processes cannot be quantized in place; use parallelize=True, or "
    "accelerate launch with the model whole on every device",
}


def read_spec(pretrained: Any, scheme: str | None) -> Spec:
    """The pair that is asked for."""
    if pretrained is None:
        raise UnsupportedError(f"expected a model; got none. Name it: {EXAMPLE}")
    if not isinstance(pretrained, str):
        pretrained = getattr(pretrained, "name_or_path", "") or type(pretrained).__name__
    named = _named(pretrained)
    whole = len(pretrained)
    if scheme is None and named is None:
        if "@" in pretrained:
            parse(pretrained)  # it says what is wrong
        raise SpecError(
            f"expected the scheme of the candidate beside pretrained={pretrained}; got none. Name it: {EXAMPLE}, or "
            f"pretrained={pretrained}@W4-gptq",
            text=pretrained,
            start=whole,
            end=whole,
        )
    if scheme is not None and named is not None:
        raise SpecError(
            f"expected one scheme; got two, {named.scheme} in pretrained={pretrained} and scheme={scheme}. Leave one "
            "out",
            text=pretrained,
            start=len(named.model),
            end=whole,
        )
    spec = named or Spec(model=pretrained, scheme=parse_scheme(str(scheme)))
    if spec.scheme.query_only:
        raise UnsupportedError(
            f"{spec.scheme}: +query keeps the index of a search at full precision, and lm-eval has no search. Leave "
            "+query out"
        )
    if chooses(spec.scheme):
        raise UnsupportedError(
            f"the criterion {spec.scheme.criterion} chooses the layers' widths on a search or on classes, and lm-eval "
            "has neither. Choose widths before, and name the file: scheme=allocation.json"
        )
    return spec


def _named(pretrained: str) -> Spec | None:
    """A name that ends in a scheme; an @ can be part of one that does not."""
    try:
        return parse(pretrained)
    except SpecError:
        return None


def refuse_options(options: Mapping[str, Any]) -> None:
    """Refuse arguments of lm-eval's hf model that make no pair."""
    for name, why in _REFUSED.items():
        if options.get(name):
            raise UnsupportedError(f"{name}={options[name]}: {why}")


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
