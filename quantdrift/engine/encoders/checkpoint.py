"""A checkpoint as an embedding model that can stand beside the reference."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib.util
import io
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from quantdrift.engine.bits import BitsReport
from quantdrift.engine.encoders.onnx import TransformerModule
from quantdrift.engine.encoders.sentence import (
    Role,
    SentenceEncoder,
    differences,
    encoder_parts,
    floating_dtype,
    load_encoder,
    reading_digest,
)
from quantdrift.engine.encoders.stored import (
    StoredLayers,
    read_gguf_head,
    stored_gguf,
    stored_layers,
    stored_tensors,
    unpacked,
)
from quantdrift.engine.encoders.vetting import loading, refuse_small_vocabulary
from quantdrift.engine.layers import find_linears
from quantdrift.engine.quantizers.libraries import import_gptqmodel, silenced
from quantdrift.engine.scoring.streamed import Similarity
from quantdrift.engine.weights import add_tensor, runtime_of
from quantdrift.errors import MissingExtraError, UnsupportedError
from quantdrift.models.checkpoint import NEEDED, Checkpoint, refuse_missing
from quantdrift.models.named import ModelSource
from quantdrift.models.saved import check_weights, read_record

# --- checkpoint body ------------------------------------------------------------------------------

_BLOCK = re.compile(r"(.+?)\.\d+\.(.+)")
_SHOWN = 3
_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def empty_body(checkpoint: Checkpoint) -> nn.Module:
    """The transformer without weights and unquantized: names and shapes of its layers.

    Raises:
        UnsupportedError: its config.json names a model that makes no embeddings.
    """
    from transformers import AutoConfig, AutoModel  # noqa: PLC0415 -- takes seconds to import

    config = AutoConfig.from_pretrained(checkpoint.body, trust_remote_code=False)
    architecture = next(iter(getattr(config, "architectures", None) or []), "")
    if architecture.endswith(_HEADS):
        raise UnsupportedError(
            f"{checkpoint.name} is a {architecture}, not an embedding model: its scores are not made of embeddings"
        )
    with torch.device("meta"):
        body: nn.Module = AutoModel.from_config(config)  # type: ignore[no-untyped-call]  # untyped
    return body


def completed(checkpoint: Checkpoint, stored: StoredLayers) -> dict[str, Any]:
    """The quantization_config that transformers needs to load what is stored.

    Args:
        checkpoint: whose config.json it is from.
        stored: its linear layers.

    Raises:
        UnsupportedError: config.json and weights contradict each other.
    """
    quantization = dict(checkpoint.quantization)
    if bool(stored.packed) != (checkpoint.method != "none"):
        says = (
            f"a quantization_config ({checkpoint.method}), but no packed linear layer"
            if quantization
            else f"packed layers ({stored.packed[0]} ...), but no quantization_config"
        )
        raise UnsupportedError(
            f"{checkpoint.body} holds {says}; expected a folder that save_pretrained of "
            "transformers wrote, or a config.json that says how the weights are packed"
        )
    if checkpoint.method == "awq":
        quantization["modules_to_not_convert"] = [*stored.plain, *stored.missing] or None
    if checkpoint.method == "gptq" and not quantization.get("block_name_to_quantize"):
        found = [_BLOCK.fullmatch(name) for name in stored.packed]
        blocks = {match[1] for match in found if match}
        if len(blocks) != 1 or not all(found):
            raise UnsupportedError(
                f"{checkpoint.name} packs layers outside of one list of blocks "
                f"({', '.join(sorted(blocks)[:3])}); optimum loads GPTQ within one only"
            )
        quantization["block_name_to_quantize"] = blocks.pop()
        inside = dict.fromkeys(match[2] for match in found if match)
        quantization["modules_in_block_to_quantize"] = [[name] for name in inside]
    return quantization


def load_kwargs(checkpoint: Checkpoint, device: torch.device) -> dict[str, Any]:
    """What from_pretrained is told beside the folder: the numbers' type, and where it runs."""
    kwargs: dict[str, Any] = {"dtype": "auto"}
    if checkpoint.method != "none" and device.type != "cpu":
        kwargs["device_map"] = str(device)  # kernels are chosen while it is loaded
    return kwargs


def load_body(checkpoint: Checkpoint, folder: Path, quantization: Mapping[str, Any], device: torch.device) -> nn.Module:
    """The transformer of a folder.

    Args:
        checkpoint: what it is.
        folder: where it lies now, the checkpoint's body or a copy of it.
        quantization: from `completed`; left out where the folder's own says everything.
        device: where it runs.

    Raises:
        UnsupportedError: weights are missing.
    """
    from transformers import AutoConfig, AutoModel  # noqa: PLC0415 -- takes seconds to import

    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if quantization != checkpoint.quantization:
        config.quantization_config = dict(quantization)
    kwargs = load_kwargs(checkpoint, device)
    body: nn.Module
    body, info = AutoModel.from_pretrained(
        folder, config=config, output_loading_info=True, trust_remote_code=False, **kwargs
    )
    refuse_random(checkpoint, info["missing_keys"])
    return body


def refuse_random(checkpoint: Checkpoint, missing: Collection[str]) -> None:
    """Refuse a model with weights that no file holds: transformers makes up random ones.

    BERT's pooler may be missing, no embedding is made of it.

    Args:
        checkpoint: what was loaded.
        missing: names of weights that were not in its files.

    Raises:
        UnsupportedError: names some of them.
    """
    random = sorted(name for name in missing if "pooler" not in name.split("."))
    if random:
        named = ", ".join(random[:_SHOWN]) + (" ..." if len(random) > _SHOWN else "")
        raise UnsupportedError(
            f"{checkpoint.name} holds no weights for {len(random)} parameters ({named}), which "
            "would be random numbers; expected all of them, under the names that save_pretrained "
            "of transformers gives them"
        )


def gguf_body(checkpoint: Checkpoint) -> nn.Module:
    """The transformer of a GGUF file, its weights dequantized.

    Raises:
        MissingExtraError: gguf is not installed, and transformers alone cannot read it.
        UnsupportedError: transformers knows no such architecture, or weights are missing.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModel, AutoModelForCausalLM  # noqa: PLC0415 -- takes seconds to import

    assert checkpoint.gguf is not None
    architecture = read_gguf_head(checkpoint.folder / checkpoint.gguf).architecture
    kwargs: dict[str, Any] = {}
    if _read_by_transformers(architecture):
        from transformers import GgufConfig  # noqa: PLC0415 -- not in every version that is allowed

        kwargs["quantization_config"] = GgufConfig(dequantize=True)
    else:
        from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES  # noqa: PLC0415 -- takes seconds

        known = {name.replace("_", "").replace("-", "") for name in GGUF_SUPPORTED_ARCHITECTURES}
        if architecture.replace("_", "").replace("-", "") not in known:
            raise UnsupportedError(
                f"{checkpoint.name} is a GGUF file of the architecture {architecture!r}, which "
                "transformers cannot read; expected one of "
                f"{', '.join(sorted(GGUF_SUPPORTED_ARCHITECTURES))}"
            )
        if importlib.util.find_spec("gguf") is None:
            raise MissingExtraError("gguf", "gguf", needed_for=f"the GGUF file {checkpoint.name}")
    kwargs["gguf_file"] = checkpoint.gguf
    config = AutoConfig.from_pretrained(checkpoint.folder, gguf_file=checkpoint.gguf)
    # Blocks are unpacked by the names that weights have below a language model's head.
    with_head = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    loader: Any = AutoModelForCausalLM if with_head else AutoModel
    model, info = loader.from_pretrained(checkpoint.folder, output_loading_info=True, **kwargs)
    body: nn.Module = model.base_model if with_head else model
    below = f"{model.base_model_prefix}." if with_head else ""  # the head itself embeds nothing
    refuse_random(checkpoint, [name for name in info["missing_keys"] if name.startswith(below)])
    return body


def check_packed(checkpoint: Checkpoint, stored: StoredLayers, body: nn.Module) -> None:
    """Refuse a body whose packed layers were not loaded as such, or others that were.

    Raises:
        UnsupportedError: names one of them.
    """
    if checkpoint.method not in {"gptq", "awq"}:
        return
    modules = dict(body.named_modules())
    wrong = [name for name in stored.packed if isinstance(modules.get(name), nn.Linear)]
    wrong += [name for name in stored.plain if not isinstance(modules.get(name), nn.Linear)]
    if wrong:
        raise UnsupportedError(
            f"transformers loaded {len(wrong)} layers of {checkpoint.name} another way than they "
            f"are stored, {wrong[0]} for one; their weights would be random"
        )


def _read_by_transformers(architecture: str) -> bool:
    """Whether transformers reads such a file by itself, as newer ones do for some."""
    try:
        from transformers.integrations.gguf.utils import is_gguf_arch_supported  # noqa: PLC0415 -- not in every version
    except ImportError:
        return False
    return bool(is_gguf_arch_supported(architecture))


# --- What a run says of a candidate that differs from its reference in more than its weights ------

_WITHOUT_EFFECT = re.compile(
    r"_name_or_path|transformers_version|(torch_)?dtype|use_cache|tie_.*|output_.*"
    r"|initializer_.*|.*_token_id|.*dropout.*|.*_pdrop"
)
"""Settings of a transformer that change no embedding, or are said otherwise."""
_PLAIN = (str, int, float, bool)
_ROUNDING = 1e-6
"""Relative; GGUF keeps settings in 32 bits."""


def of_another_model(checkpoint: Checkpoint, reference: SentenceEncoder) -> list[str]:
    """A sentence where quantdrift made the candidate of another model than it is compared with.

    Args:
        checkpoint: the candidate.
        reference: what it is compared with.
    """
    if checkpoint.method != "quantdrift":
        return []
    base = read_record(checkpoint.folder).get("base_model", {}).get("canonical")
    if base in {None, reference.source.canonical}:
        return []
    return [
        f"{checkpoint.name} was made of {base}, not of {reference.source.canonical}: what changes "
        "is not from quantization alone"
    ]


def other_settings(reference: Any, candidate: Any) -> list[str]:
    """A sentence on settings in which two transformers differ, such as a base of rotary positions.

    Args:
        reference: a SentenceTransformer.
        candidate: another.
    """
    one, other = _settings(reference), _settings(candidate)
    found = [
        f"{name}: {one[name]!r} and {other[name]!r}"
        for name in sorted(one.keys() & other.keys())
        if not _WITHOUT_EFFECT.fullmatch(name) and _differ(one[name], other[name])
    ]
    if not found:
        return []
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return [
        f"reference and candidate differ in settings ({', '.join(found[:_SHOWN])}{more}): what "
        "changes is not from the weights alone"
    ]


def _settings(model: Any) -> dict[str, Any]:
    """Of the transformer that a model begins with; none where it begins with something else."""
    config: Any = getattr(getattr(model[0], "auto_model", None), "config", None)
    said: dict[str, Any] = config.to_dict() if hasattr(config, "to_dict") else {}
    groups = {name: value for name, value in said.items() if isinstance(value, dict)}
    inner = {f"{name}.{key}": part for name, group in groups.items() for key, part in group.items()}
    return {**said, **inner}


def _differ(one: object, other: object) -> bool:
    if not (isinstance(one, _PLAIN) and isinstance(other, _PLAIN)):
        return False
    if isinstance(one, float) and isinstance(other, float):
        return not math.isclose(one, other, rel_tol=_ROUNDING)
    return one != other


# --- A candidate's transformer with everything else taken from the reference ----------------------


def dressed(
    checkpoint: Checkpoint, reference: SentenceEncoder, body: nn.Module, tokenizer: Path | None, device: torch.device
) -> Any:
    """The reference's modules around another transformer.

    Args:
        checkpoint: whose transformer it is.
        reference: whose modules they are; not changed.
        body: the transformer.
        tokenizer: folder that has one, None for the reference's.
        device: where it runs.

    Raises:
        UnsupportedError: the two transformers are of other kinds or sizes.
    """
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 -- takes seconds to import
    from transformers import AutoTokenizer  # noqa: PLC0415 -- as above

    original = body_of(reference.model)
    for what, here, there in (
        ("kind", type(original).__name__, type(body).__name__),
        ("width", _config(original, "hidden_size"), _config(body, "hidden_size")),
        ("vocabulary", _config(original, "vocab_size"), _config(body, "vocab_size")),
    ):
        if here != there:
            raise UnsupportedError(
                f"{checkpoint.name} does not say how tokens become an embedding (no modules.json), "
                f"and the reference's modules do not fit: {what} {there} instead of {here}. Save "
                "it by SentenceTransformer.save_pretrained, or name the model it was made of"
            )
    first, *others = reference.model.children()
    clone = copy.copy(first)
    for name, value in vars(first).items():
        if isinstance(value, dict):  # caches and modules are the clone's own
            clone.__dict__[name] = dict(value)
    place = next(name for name, child in first.named_children() if child is original)
    clone._modules[place] = body
    if tokenizer is not None:
        holder = "processor" if hasattr(first, "processor") else "tokenizer"
        setattr(clone, holder, AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False))
    model = SentenceTransformer(
        modules=[clone, *(copy.deepcopy(module) for module in others)],
        device=str(device),
        prompts=dict(reference.model.prompts),
        default_prompt_name=reference.model.default_prompt_name,
        similarity_fn_name=reference.model.similarity_fn_name,
        truncate_dim=reference.model.truncate_dim,
    )
    model.max_seq_length = reference.model.max_seq_length
    return model


def body_of(model: Any) -> nn.Module:
    """The transformer of a SentenceTransformer.

    Raises:
        UnsupportedError: its first module is something else.
    """
    body = getattr(model[0], "auto_model", None)
    if not isinstance(body, nn.Module):
        raise UnsupportedError(
            f"expected an embedding model whose first module is a transformer; got {type(model[0]).__name__}"
        )
    return body


def _config(body: nn.Module, key: str) -> Any:
    return getattr(getattr(body, "config", None), key, None)


# --- Loading by other people's libraries, with the process left as it was -------------------------


@contextlib.contextmanager
def process_undisturbed(checkpoint: Checkpoint) -> Iterator[None]:
    """Undo what libraries do to the process, so that the reference computes as in any other run.

    Some greet on standard output, where a record may be expected, and some set the precision of
    products in float32.
    """
    precision = torch.get_float32_matmul_precision()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            if "gptqmodel" in NEEDED.get(checkpoint.method, ((), ""))[0]:
                stack.enter_context(silenced(import_gptqmodel()[1]))
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


# --- A checkpoint as an embedding model that can stand beside the reference -----------------------

_TAKEN = "pooling, normalization, prompts and length limit"
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "tokenizer.model")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedCheckpoint:
    """A checkpoint that is loaded.

    Attributes:
        checkpoint: where it came from.
        encoder: the model.
        stored: its linear layers, as they lie on disk.
        notes: what was taken from the reference, and in what beside weights the two differ.
    """

    checkpoint: Checkpoint
    encoder: SentenceEncoder
    stored: StoredLayers
    notes: tuple[str, ...]


def load_checkpoint(
    checkpoint: Checkpoint, reference: SentenceEncoder | None, *, device: torch.device
) -> LoadedCheckpoint:
    """Load a checkpoint as the candidate of a reference.

    A folder that does not say how tokens become an embedding (no modules.json), and a GGUF file,
    take pooling, normalization, prompts and length limit from the reference; what has no tokenizer
    takes that, too.

    Args:
        checkpoint: what to load.
        reference: what it will be compared with; None for what is not here and can lend nothing.
        device: where it runs.

    Raises:
        MissingExtraError: a library that reads the format is not installed.
        UnsupportedError: transformers cannot load it, it holds something else than its config.json
            says, weights are missing, or it needs a part that the reference cannot lend.
        RunError: no room to unpack it, or a saved candidate's files were changed.
    """
    refuse_missing(checkpoint)
    if reference is None and not checkpoint.has_modules:
        raise UnsupportedError(
            f"{checkpoint.name} says nothing of {_TAKEN}, and a server cannot lend them; expected "
            "a folder with modules.json, as SentenceTransformer.save_pretrained writes it"
        )
    what = f"checkpoint (format {checkpoint.method})"
    with loading(_source(checkpoint), what, unpacks="hqq"), process_undisturbed(checkpoint):
        if checkpoint.gguf is not None:
            assert reference is not None  # a GGUF file has no modules.json
            body = gguf_body(checkpoint)
            stored = stored_gguf(checkpoint.folder / checkpoint.gguf, body)
            model, taken = dressed(checkpoint, reference, body, None, device), ["tokenizer"]
        else:
            model, stored, taken = _from_folder(checkpoint, reference, device)
    model.eval()
    refuse_small_vocabulary(model, checkpoint.name)
    notes = []
    if not checkpoint.has_modules:
        named = ", ".join([*taken, _TAKEN])
        notes.append(f"{checkpoint.name} says nothing of {named}: taken from the reference")
    encoder = SentenceEncoder(
        model=model, source=_source(checkpoint), similarity=_same_similarity(checkpoint, model, reference)
    )
    if reference is not None:
        notes.extend(of_another_model(checkpoint, reference))
        notes.extend(other_settings(reference.model, model))
        notes.extend(differences(reference, encoder))
    return LoadedCheckpoint(checkpoint=checkpoint, encoder=encoder, stored=stored, notes=tuple(notes))


def _from_folder(
    checkpoint: Checkpoint, reference: SentenceEncoder | None, device: torch.device
) -> tuple[Any, StoredLayers, list[str]]:
    """The model of a folder, how it is stored, and what it took beside what is always taken."""
    if checkpoint.method == "quantdrift":
        return _own(checkpoint, device)
    empty = empty_body(checkpoint)
    tensors = stored_tensors(checkpoint.body)
    stored = stored_layers(tensors, empty)
    quantization = completed(checkpoint, stored)
    with contextlib.ExitStack() as stack:
        if checkpoint.method == "hqq":
            folder = stack.enter_context(unpacked(checkpoint))
            checkpoint = replace(checkpoint, method="none", quantization={})
            quantization = {}
        else:
            folder = checkpoint.folder
        if not checkpoint.has_modules:
            body = load_body(checkpoint, folder, quantization, device)
            check_packed(checkpoint, stored, body)
            assert reference is not None  # refused before
            own = any((folder / name).is_file() for name in _TOKENIZERS)
            model = dressed(checkpoint, reference, body, folder if own else None, device)
            return model, stored, [] if own else ["tokenizer"]

        model = load_sentence_transformer(checkpoint, folder, quantization, device)
    check_packed(checkpoint, stored, body_of(model))
    others = list(model.children())[1:]
    return model, stored_layers(tensors, empty, others=others), []


def _own(checkpoint: Checkpoint, device: torch.device) -> tuple[Any, StoredLayers, list[str]]:
    """What `quantdrift quantize` wrote, in either of its formats."""
    record = read_record(checkpoint.folder)
    check_weights(checkpoint.folder, record)
    names = [layer["name"] for layer in record["layers"]]
    bits = BitsReport(**checkpoint.quantization["bits_per_weight"])
    stored = StoredLayers(packed=tuple(name.split(".", 2)[-1] for name in names), plain=(), missing=(), bits=bits)
    return load_encoder(_source(checkpoint), device=device).model, stored, []


def _source(checkpoint: Checkpoint) -> ModelSource:
    return ModelSource(
        name=checkpoint.name, canonical=checkpoint.canonical, kind="local", location=str(checkpoint.folder)
    )


def _same_similarity(checkpoint: Checkpoint, model: Any, reference: SentenceEncoder | None) -> Similarity:
    name = str(model.similarity_fn_name or "cosine")
    if reference is None:
        if name not in set(Similarity):
            raise UnsupportedError(
                f"{checkpoint.name} compares embeddings by {name!r}; expected one of {', '.join(Similarity)}"
            )
        return Similarity(name)
    if name != str(reference.similarity):
        raise UnsupportedError(
            f"{checkpoint.name} compares embeddings by {name!r}, {reference.source.name} by "
            f"{str(reference.similarity)!r}: their scores have no common scale. Set "
            "similarity_fn_name in config_sentence_transformers.json of one of them"
        )
    return reference.similarity


# --- A checkpoint that sentence-transformers saved, loaded with an eye on what it lacks -----------


def load_sentence_transformer(
    checkpoint: Checkpoint, folder: Path, quantization: Mapping[str, Any], device: torch.device
) -> SentenceTransformer:
    """The embedding model of a folder.

    Args:
        checkpoint: what it is.
        folder: where it lies now, the checkpoint's folder or a copy of it.
        quantization: from `completed`; left out where the folder's own says everything.
        device: where it runs.

    Raises:
        UnsupportedError: weights are missing.
    """
    amended = quantization != checkpoint.quantization
    kwargs = load_kwargs(checkpoint, device)
    model = _Model(
        str(folder),
        device=None if "device_map" in kwargs else str(device),
        model_kwargs=kwargs,
        config_kwargs={"quantization_config": dict(quantization)} if amended else None,
    )
    refuse_random(checkpoint, getattr(model[0], "missing_keys", ()))
    return model


class _Transformer(TransformerModule):
    """A Transformer module that keeps the names of weights that its files do not hold."""

    missing_keys: tuple[str, ...] = ()

    def _load_model(self, *args: Any, **kwargs: Any) -> Any:
        loaded: Any = super()._load_model(*args, output_loading_info=True, **kwargs)
        assigned = loaded is None  # sentence-transformers 5 puts it in its place itself
        model, info = self.__dict__.pop("auto_model") if assigned else loaded
        self.missing_keys = tuple(sorted(info["missing_keys"]))
        if assigned:
            self.add_module("auto_model", model)
        return model


class _Model(SentenceTransformer):
    """A SentenceTransformer whose Transformer modules are ours."""

    def _load_module_class_from_ref(self, class_ref: str, *args: Any, **kwargs: Any) -> Any:
        found = super()._load_module_class_from_ref(class_ref, *args, **kwargs)
        return _Transformer if found is TransformerModule else found


# --- A stored candidate that is loaded: what it is, and what decides its embeddings ---------------


class StoredCandidate:
    """A checkpoint as one side of a comparison.

    Attributes:
        encoder: the model.
        notes: in what beside weights it differs from its reference, and what it took from there.
        layers: names of its packed layers.
    """

    def __init__(self, loaded: LoadedCheckpoint) -> None:
        """Nothing is computed yet.

        Args:
            loaded: the checkpoint.
        """
        self._loaded = loaded
        self._digest: str | None = None
        self.encoder = loaded.encoder
        self.notes = loaded.notes
        self.layers: Sequence[str] = loaded.stored.packed

    def encode(self, texts: Sequence[str], role: Role, batch_size: int) -> NDArray[np.float32]:
        """Embed texts, float32 [n, dim]."""
        return self.encoder.encode(texts, role, batch_size)

    @property
    def fingerprint(self) -> str:
        """Digest of all that decides its embeddings: weights as loaded, settings of the
        transformer, tokenizer, prompts, pooling, format, kernels and libraries.
        """
        if self._digest is None:
            digest = hashlib.blake2b(digest_size=16)
            parts = {
                **encoder_parts(self.encoder),
                "format": self._loaded.checkpoint.method,
                "quantization": self._loaded.checkpoint.quantization,
                **self._libraries(),
                "kernels": self._kernels(),
                "settings": reading_digest([], [self.encoder.module]),
            }
            digest.update(json.dumps(parts, sort_keys=True, default=str).encode())
            for name, tensor in sorted(self.encoder.module.state_dict().items()):
                add_tensor(digest, name, tensor)
            self._digest = digest.hexdigest()
        return self._digest

    @property
    def runtime(self) -> dict[str, str]:
        """What decides embeddings beside weights and inputs."""
        return runtime_of_encoder(self.encoder)

    def bits(self) -> BitsReport:
        """Bits per weight, counted from what is stored."""
        return self._loaded.stored.bits

    def identify(self) -> dict[str, Any]:
        """What a run records of where it came from, as JSON values."""
        return {**self._loaded.checkpoint.identify(), "fingerprint": self.fingerprint}

    def describe(self) -> dict[str, Any]:
        """What a run records of how it is quantized, as JSON values."""
        return {
            **self._loaded.checkpoint.describe(),
            "dtype": str(floating_dtype(self.encoder)),
            "kernels": self._kernels(),
            "libraries": self._libraries(),
            "notes": list(self.notes),
        }

    def _kernels(self) -> dict[str, int]:
        """The classes that stand for the packed layers, and how often."""
        if self._onnx is not None:
            record = read_record(self._loaded.checkpoint.folder)
            packed = [one for one in record["layers"] if one["stored"].startswith("MatMulNBits")]
            return {f"MatMulNBits by {self._onnx.provider}": len(packed)}
        found: dict[str, int] = {}
        modules = {in_body(name): module for name, module in self.encoder.module.named_modules()}
        for name in self.layers:
            if name in modules:
                module = modules[name]
                weight = getattr(module, "weight", None)
                kind = type(module).__name__
                if isinstance(weight, Tensor) and type(weight) not in {Tensor, nn.Parameter}:
                    kind += f" of {type(weight).__name__}"
                found[kind] = found.get(kind, 0) + 1
        return found

    def _libraries(self) -> dict[str, str]:
        if self._onnx is not None:
            return {"onnxruntime": str(self._onnx.version)}
        packages, _ = NEEDED.get(self._loaded.checkpoint.method, ((), ""))
        return {package: _version(package) for package in packages}

    @property
    def _onnx(self) -> Any:
        """The graph that onnxruntime runs for the candidate; None if torch computes it."""
        if self._loaded.checkpoint.quantization.get("model_format") != "onnx":
            return None
        return self.encoder.model[0].auto_model


def runtime_of_encoder(encoder: SentenceEncoder) -> dict[str, str]:
    """What decides a model's embeddings beside weights and inputs, as for any pair.

    Args:
        encoder: the model.
    """
    linears = find_linears([encoder.module])
    return runtime_of(linears[0].parameter if linears else next(encoder.module.parameters()))


def in_body(name: str) -> str:
    """A layer's name below its module of sentence-transformers, which keep theirs in 0.model."""
    return name.split(".", 2)[-1]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
