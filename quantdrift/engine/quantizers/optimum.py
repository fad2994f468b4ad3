"""GPTQ by optimum, which walks a model block by block; gptqmodel rounds, as it does in optimum."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from quantdrift.engine.quantizers.base import Moments
from quantdrift.engine.quantizers.gptq import Gptq
from quantdrift.engine.quantizers.libraries import OPTIMUM, import_gptqmodel, silenced
from quantdrift.engine.weights import left_as_it_was
from quantdrift.errors import QuantDriftError, UnsupportedError

_INSTEAD = "use +backend=gptqmodel, which calibrates on whatever the model is run with"

_HARMLESS = {"input_ids", "attention_mask", "return_dict", "use_cache", "output_attentions", "output_hidden_states"}
"""Inputs of a model that are given on, or change no hidden state."""

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
    blocks = _block_list(model)
    gptqmodel, log = import_gptqmodel()
    with OPTIMUM.importing():
        library: Any = importlib.import_module("optimum.gptq.quantizer")
    before = getattr(library, "GPTQ", None), library.tqdm
    with torch.no_grad(), left_as_it_was(model), silenced(log):
        model.config.use_cache = False  # type: ignore[union-attr]  # optimum asks for it, and not every model has it
        with left_as_it_was(model):
            texts = _texts_of(model, batches)
        with left_as_it_was(model):
            _check_blocks(model, blocks, max(texts, key=lambda text: text["input_ids"].shape[1]))
        quantizer = library.GPTQQuantizer(
            bits=method.bits,
            dataset=texts,
            group_size=method.group_size or -1,
            act_group_aware=False,  # the default refuses one group for a whole row
            block_name_to_quantize=blocks,
            module_name_preceding_first_block=[],  # these are where the model is
            cache_block_outputs=False,  # a block's input then comes from the model, not from block to block
        )
        quantizer.pack_model = lambda **_: None  # it would put other modules into the model
        quantizer.post_init_model = lambda model: model
        library.GPTQ, library.tqdm = _solver(gptqmodel.GPTQ, arrive), lambda items, **_: items
        try:
            quantizer.quantize_model(model)
        except QuantDriftError:
            raise
        except Exception as error:
            raise UnsupportedError(
                f"optimum cannot run the blocks of {type(model).__name__} by themselves "
                f"({type(error).__name__}: {error}); {_INSTEAD}"
            ) from error
        finally:
            library.GPTQ, library.tqdm = before


def _transformers_model(modules: Sequence[nn.Module]) -> nn.Module:
    from transformers import PreTrainedModel  # noqa: PLC0415 -- comes with the library

    found: list[nn.Module] = []
    for module in (inner for root in modules for inner in root.modules()):
        if isinstance(module, PreTrainedModel) and not any(module in outer.modules() for outer in found):
            found.append(module)
    both = len(found) == 1 and getattr(getattr(found[0], "config", None), "is_encoder_decoder", False)
    if len(found) != 1 or both:
        kinds = ", ".join(type(one).__name__ for one in found) or "none"
        raise UnsupportedError(
            f"optimum quantizes one list of blocks of one transformers model, got "
            f"{kinds}{', which has an encoder and a decoder' if both else ''}; {_INSTEAD}"
        )
    return found[0]


def _block_list(model: nn.Module) -> str:
    """Path of the model's blocks: of the outermost lists of modules, that with most parameters."""
    sizes: dict[str, int] = {}
    for name, module in model.named_modules():
        nested = any(name.startswith(f"{outer}.") for outer in sizes)
        if isinstance(module, nn.ModuleList) and len(module) and not nested:
            sizes[name] = sum(parameter.numel() for parameter in module.parameters())
    if not sizes:
        raise UnsupportedError(f"optimum quantizes a list of blocks, and {type(model).__name__} has none; {_INSTEAD}")
    return max(sizes, key=lambda name: sizes[name])


def _texts_of(model: nn.Module, batches: Sequence[Callable[[], object]]) -> list[Text]:
    """Run the batches, and take what the model is given apart into texts without padding."""
    calls: list[Mapping[str, Any]] = []
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
    texts = [text for call in calls for text in _taken_apart(model, call)]
    if not texts:
        raise UnsupportedError(
            f"optimum calls {type(model).__name__} on token ids, and no calibration input was a call of it; {_INSTEAD}"
        )
    return texts


def _taken_apart(model: nn.Module, given: Mapping[str, Any]) -> Iterator[Text]:
    """The texts of one call, those of the same length together; refuses what optimum would drop."""
    ids, mask = given.get("input_ids"), given.get("attention_mask")
    dropped = [name for name, value in given.items() if _matters(name, value)]
    if isinstance(mask, Tensor) and isinstance(ids, Tensor) and mask.shape != ids.shape:
        dropped.append(f"attention_mask {list(mask.shape)}")
    if dropped or not isinstance(ids, Tensor):
        raise UnsupportedError(
            "optimum gives a model token ids and their attention mask, and drops the rest; "
            f"{type(model).__name__} was given {', '.join(dropped) or 'no input_ids'}; {_INSTEAD}"
        )
    real = torch.ones_like(ids).bool() if mask is None else mask.bool()
    lengths = real.sum(dim=1)
    for length in lengths.unique().tolist():
        rows = lengths == length
        if length:
            texts = ids[rows][real[rows]].view(-1, length).cpu()
            yield {"input_ids": texts, "attention_mask": torch.ones_like(texts)}


def _matters(name: str, value: object) -> bool:
    """Whether an input beside ids and mask may change what the blocks see."""
    if name in _HARMLESS or value is None:
        return False
    return not (name == "token_type_ids" and isinstance(value, Tensor) and not bool(value.any()))


def _check_blocks(model: nn.Module, blocks: str, text: Text) -> None:
    """Refuse a model whose blocks get, on a text, more than optimum hands on.

    That is the first input of a block, and the named inputs of the first block. A mask that masks nothing can go.
    """
    shared: list[Any] = []

    def check(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        named = tree_leaves({name: value for name, value in kwargs.items() if name != "hidden_states"})
        shared.extend(named if not shared else ())
        same = len(named) == len(shared) and all(map(_same, named, shared))
        dropped = [one for one in args[1:] if isinstance(one, Tensor) and not _masks_nothing(one)]
        if dropped or not same:
            raise UnsupportedError(
                "optimum runs each block by itself, on hidden states and the named inputs of the first block; "
                f"{type(block).__name__} is given more; {_INSTEAD}"
            )

    model.eval()
    for block in model.get_submodule(blocks).children():
        block.register_forward_pre_hook(check, with_kwargs=True)
    device = next(model.parameters()).device
    model(**{name: value[:1].to(device) for name, value in text.items()})


def _masks_nothing(mask: Tensor) -> bool:
    return bool(mask.all() if mask.dtype == torch.bool else not mask.any())


def _same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return one is other or bool(one == other)


def _solver(base: Any, arrive: Arrive) -> type:
    """What optimum makes for every layer: gptqmodel's collector of inputs, and `arrive`."""

    class Solver(base):  # type: ignore[misc]  # not typed
        def __init__(self, module: nn.Module, qcfg: Any) -> None:
            super().__init__(module, qcfg=qcfg)
            self._absolute = torch.zeros(self.columns)
            self._largest = 0.0

        def add_batch(self, inp: Tensor, out: Tensor, batch_index: int | None = None) -> None:
            if isinstance(self.module, nn.Conv2d) or not inp.numel():
                return  # optimum would quantize convolutions too
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
