"""GPTQ by optimum, which walks a model block by block; gptqmodel rounds, as it does in optimum."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.base.errors import UnsupportedError
from quantdrift.engine.quantizers.base import Moments
from quantdrift.engine.quantizers.gptq import Gptq
from quantdrift.engine.quantizers.libraries import OPTIMUM, import_gptqmodel, silenced
from quantdrift.engine.weights import restoring

_INSTEAD = "use +backend=gptqmodel, which calibrates on whatever the model is run with"

_KNOWN = (
    *("bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta"),
    *("gemma", "gpt2", "gpt_neox", "granite", "llama", "mistral", "opt", "phi3", "qwen2", "qwen3"),
)
"""Kinds of models whose blocks all get the same inputs beside hidden states, which is what optimum hands on."""
_HARMLESS = {"return_dict", "use_cache", "output_attentions", "output_hidden_states"}
"""Inputs of a model beside ids and mask that change no hidden state."""

Text = dict[str, Tensor]
"""Texts of one length: "input_ids" and "attention_mask", int64 [n, n_tokens], on the CPU."""
Arrive = Callable[[nn.Module, Moments], None]
"""Called with a module and the moments of its input, when it is to be quantized in place."""


def walk(method: Gptq, modules: Sequence[nn.Module], batches: Sequence[Callable[[], object]], arrive: Arrive) -> None:
    """Let optimum run a model on what the batches give it, and stop at each layer of its blocks.

    It chooses the layers (linear modules inside the blocks), their order, and what they see: inputs from quantized
    blocks before, one forward pass of a block for each of its layers.
    """
    model = _transformers_model(modules)
    sizes = {
        name: sum(parameter.numel() for parameter in module.parameters())
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
    }
    gptqmodel, log = import_gptqmodel()
    with OPTIMUM.importing():
        library: Any = importlib.import_module("optimum.gptq.quantizer")
    before = getattr(library, "GPTQ", None), library.tqdm
    with torch.no_grad(), restoring(model), silenced(log):
        model.config.use_cache = False  # type: ignore[union-attr]  # optimum asks for it, and not every model has it
        with restoring(model):
            texts = _texts_of(model, batches)
        quantizer = library.GPTQQuantizer(
            bits=method.bits,
            dataset=texts,
            group_size=method.group_size or -1,
            act_group_aware=False,  # the default refuses one group for a whole row
            block_name_to_quantize=max(sizes, key=lambda name: sizes[name]),
            module_name_preceding_first_block=[],  # these are where the model is
            cache_block_outputs=False,  # a block's input then comes from the model, not from block to block
        )
        quantizer.pack_model = lambda **_: None  # it would put other modules into the model
        quantizer.post_init_model = lambda model: model
        library.GPTQ, library.tqdm = _solver(gptqmodel.GPTQ, arrive), lambda items, **_: items
        try:
            quantizer.quantize_model(model)
        finally:
            library.GPTQ, library.tqdm = before


def _transformers_model(modules: Sequence[nn.Module]) -> nn.Module:
    from transformers import PreTrainedModel  # noqa: PLC0415 -- comes with the library

    found = [inner for root in modules for inner in root.modules() if isinstance(inner, PreTrainedModel)]
    config = getattr(found[0], "config", None) if found else None
    layer_types = getattr(config, "layer_types", None) or ()
    if not set(found) <= set(found[0].modules() if found else ()) or len(set(layer_types)) > 1:
        config = None
    if getattr(config, "model_type", None) not in _KNOWN:
        kinds = ", ".join(dict.fromkeys(type(one).__name__ for one in found)) or "none"
        raise UnsupportedError(
            f"optimum quantizes one transformers model whose blocks are alike ({', '.join(_KNOWN)}); got {kinds}; "
            f"{_INSTEAD}"
        )
    return found[0]


def _texts_of(model: nn.Module, batches: Sequence[Callable[[], object]]) -> list[Text]:
    """Run the batches, and take what the model is given apart into texts without padding, by length."""
    calls: list[dict[str, Any]] = []
    forward = model.forward
    signature = inspect.signature(forward)

    @functools.wraps(forward)
    def noted(*args: Any, **kwargs: Any) -> Any:
        given = dict(signature.bind(*args, **kwargs).arguments)
        calls.append(given | given.pop("kwargs", {}))
        return forward(*args, **kwargs)

    model.forward = noted  # a hook would miss sentence-transformers, which calls forward itself
    for batch in batches:
        batch()
    return [text for call in calls for text in _taken_apart(**call)]


def _taken_apart(
    input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **others: Any
) -> Iterator[Text]:
    """The texts of one call, those of the same length together; refuses what optimum would drop."""
    types = others.pop("token_type_ids", None)
    more = [name for name, value in others.items() if name not in _HARMLESS and value is not None]
    if input_ids is None or more or (types is not None and bool(types.any())):
        raise UnsupportedError(
            f"optimum gives a model token ids and their attention mask, and drops the rest "
            f"({', '.join(more) or 'token_type_ids'}); {_INSTEAD}"
        )
    real = torch.ones_like(input_ids).bool() if attention_mask is None else attention_mask.bool()
    lengths = real.sum(dim=1)
    for length in sorted({*lengths.tolist()} - {0}):
        rows = lengths == length
        texts = input_ids[rows][real[rows]].view(-1, length).cpu()
        yield {"input_ids": texts, "attention_mask": torch.ones_like(texts)}


def _solver(base: Any, arrive: Arrive) -> type:
    """What optimum makes for every layer: gptqmodel's collector of inputs, and `arrive`."""

    class Solver(base):  # type: ignore[misc]  # not typed
        def __init__(self, module: nn.Module, qcfg: Any) -> None:
            super().__init__(module, qcfg=qcfg)
            self._absolute = torch.zeros(self.columns)
            self._largest = 0.0

        def add_batch(self, inp: Tensor, out: Tensor, batch_index: int | None = None) -> None:
            super().add_batch(inp, out, batch_index)
            absolute = inp.detach().abs().flatten(0, -2)
            self._absolute += absolute.sum(dim=0, dtype=torch.float32).cpu()
            self._largest = max(self._largest, float(absolute.max()))

        def fasterquant(self, **settings: Any) -> tuple[None, None, None]:
            hessian = self.finalize_hessian()  # 2 / n_tokens times the sum of x x^T
            moments = Moments(
                second=hessian / 2,
                mean_abs=self._absolute.to(hessian.device) / max(1, self.nsamples),
                absmax=self._largest,
                n_tokens=self.nsamples,
            )
            self.H = None
            arrive(self.module, moments)
            return None, None, None  # what packing would need

    return Solver
