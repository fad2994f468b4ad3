"""Loads the transformer of a GGUF file with unpacked weights, and reads how they are stored."""

import re
from collections.abc import Collection
from math import prod
from pathlib import Path
from typing import Any

import torch
import transformers
from gguf import MODEL_ARCH_NAMES, GGUFReader, GGUFValueType, get_tensor_name_map  # type: ignore[import-not-found,import-untyped,unused-ignore]  # an optional extra
from torch import nn

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.text import some
from quantdrift.builtin.sentence.work import SentenceEncoder
from quantdrift.candidate.checkpoint import Loaded, dressed
from quantdrift.models.files.checkpoint import Checkpoint
from quantdrift.models.stored import StoredLayers, stored_bits
from quantdrift.models.vetting import vet_settings

_BLOCK = re.compile(r"(?:enc\.)?blk\.(\d+)\.")
_FLOAT_TYPES = frozenset({"F32", "F16", "F64", "BF16"})
"""All other types are blocks of codes and scales."""
_NAMED = 3
"""Most tensors that a note names."""


def stored_gguf(file: Path, body: nn.Module) -> StoredLayers:
    """Sort the weight matrices of a GGUF file into packed and plain ones, and count their bits.

    Codes and scales share blocks and are counted together. Names are those of the file.
    """
    tensors = {tensor.name: tensor for tensor in GGUFReader(file).tensors}
    matrices = {
        name: tensor
        for name, tensor in tensors.items()
        if name.startswith("blk.") and len(tensor.shape) == 2  # noqa: PLR2004 -- a matrix
    }
    packed = tuple(name for name, tensor in matrices.items() if tensor.tensor_type.name not in _FLOAT_TYPES)
    plain = tuple(name for name in matrices if name not in packed)
    counted = [matrices[name] for name in packed or plain]
    n_bytes = sum(int(tensor.n_bytes) for tensor in counted)
    bits = stored_bits(
        codes=n_bytes,
        with_scales=n_bytes,
        everything=sum(int(tensor.n_bytes) for tensor in tensors.values()),
        n_weights=sum(prod(map(int, tensor.shape)) for tensor in counted),
        n_parameters=sum(parameter.numel() for parameter in body.parameters()),
        is_packed=bool(packed),
    )
    return StoredLayers(packed=packed, plain=plain, bits=bits)


def vet_gguf(file: Path) -> None:
    """Refuse a file whose metadata ask for more than it holds, before anything is built."""
    opened = GGUFReader(file)
    said = set()
    for name, field in opened.fields.items():
        if len(field.types) == 1 and field.types[0] != GGUFValueType.STRING:
            key, number = name.rpartition(".")[2], field.parts[field.data[0]][0].item()
            vet_settings({key: number}, file.name)
            said |= {number} if key == "block_count" else set()
    held = {match[1] for tensor in opened.tensors if (match := _BLOCK.match(tensor.name))}
    if said != {len(held)}:
        raise UnsupportedError(
            f"{file.name} says block_count {', '.join(map(str, sorted(said))) or 'nowhere'}, and has the tensors of "
            f"{len(held)} blocks; expected as many as it says. Copy it here again"
        )


def load_encoder(checkpoint: Checkpoint, reference: SentenceEncoder | None, device: torch.device) -> Loaded:
    """Load the transformer of a GGUF file dequantized, with everything else from the reference."""
    vet_gguf(checkpoint.folder / str(checkpoint.file))
    place: dict[str, Any] = {"pretrained_model_name_or_path": checkpoint.folder, "gguf_file": checkpoint.file}
    # blocks are unpacked by the names of weights below a language model's head
    with_head = type(transformers.AutoConfig.from_pretrained(**place)) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if hasattr(transformers, "GgufConfig"):  # missing in some supported versions
        place["quantization_config"] = transformers.GgufConfig(dequantize=True)
    loader: Any = transformers.AutoModelForCausalLM if with_head else transformers.AutoModel
    model, said = loader.from_pretrained(**place, dtype="auto", output_loading_info=True)
    body: nn.Module = model.base_model if with_head else model
    file = checkpoint.folder / str(checkpoint.file)
    notes, stored = left_out(file, model, said["missing_keys"]), stored_gguf(file, body)
    return Loaded(model=dressed(checkpoint, reference, body, device), stored=stored, notes=notes)


def left_out(file: Path, model: nn.Module, missing: Collection[str]) -> tuple[str, ...]:
    """Note what a file stores and a model does not have: transformers passes over unknown tensors in silence.

    `missing` are the parameters that are not from the file.
    """
    opened = GGUFReader(file)
    sizes = {tensor.name: int(tensor.n_elements) for tensor in opened.tensors}
    n_read = sum(weight.numel() for name, weight in model.named_parameters() if name not in missing)
    if (n_more := sum(sizes.values()) - n_read) <= 0:
        return ()
    architecture = bytes(opened.fields["general.architecture"].parts[-1]).decode()
    numbers = {name: number for number, name in MODEL_ARCH_NAMES.items()}
    unknown = [*sizes]
    if architecture in numbers:
        names = get_tensor_name_map(numbers[architecture], len({m[1] for m in map(_BLOCK.match, sizes) if m}))
        known = {names.get_name(name, try_suffixes=(".weight", ".bias")) for name in model.state_dict()}
        unknown = [name for name in sizes if name not in known]
    return (
        f"{file.name} stores {n_more:,} weights more ({some(unknown, _NAMED)}) than {type(model).__name__} of "
        "transformers has: left out, and llama.cpp may use them",
    )
