"""Loads a checkpoint as an embedding model, a classifier or a reranker, to compare it with the reference."""

import copy
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig
from transformers.quantizers.auto import AutoHfQuantizer

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.extras import version_of
from quantdrift.base.registry import imported
from quantdrift.builtin.classifier.work import Classifier, load_classifier
from quantdrift.builtin.cross_encoder.work import CrossEncoderModel, cross_encoder_of
from quantdrift.builtin.hqq.reading import made_of, unpacked
from quantdrift.builtin.sentence import work as sentence
from quantdrift.candidate.libraries import import_gptqmodel, silenced
from quantdrift.models import UNASKED, WARNED
from quantdrift.models.bits import BitsReport
from quantdrift.models.files.checkpoint import Checkpoint, packages_for, refuse_missing
from quantdrift.models.files.model_files import MODEL_FILES, files_in
from quantdrift.models.files.named import ModelSource
from quantdrift.models.files.saved import check_weights, read_record
from quantdrift.models.files.tensors import stored_tensors
from quantdrift.models.loading import loading, try_text
from quantdrift.models.model import LoadedModel
from quantdrift.models.packed import KERNELS, check_bitsandbytes, check_gptq, kernel_for
from quantdrift.models.stored import StoredLayers, stored_layers
from quantdrift.models.weights import add_tensor, weights_fingerprint
from quantdrift.scoring.streamed import float32_products

_TAKEN = "pooling, normalization, prompts and length limit"
_TAKEN_TO_RERANK = "prompts, length limit and what makes a score of its logits"
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "tokenizer.model")
_SCORING = {name: name for name in ("ForSequenceClassification", "ForCausalLM")} | {"LMHeadModel": "ForCausalLM"}
_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
_BLOCK = re.compile(r"(.+?)\.\d+\.(.+)")
Reference = sentence.SentenceEncoder | CrossEncoderModel
"""A model from which a checkpoint takes the parts that its files do not describe."""


class ForeignModule(nn.Module):
    """A stand-in for a transformers model that another library than torch computes.

    Attributes:
        config: config of the original model.
        kernels: operators that compute the quantized layers, with their numbers.
        libraries: libraries that compute it, with their versions.
        facts: further entries of a record, as JSON values.
    """

    config: PretrainedConfig
    kernels: Mapping[str, int]
    libraries: Mapping[str, str]
    facts: Mapping[str, Any]

    def computed(self) -> dict[str, Any]:
        """Return its entries in the record of a run, as JSON values."""
        return {**self.facts, "kernels": dict(self.kernels), "libraries": dict(self.libraries)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A loaded checkpoint.

    Attributes:
        model: a SentenceTransformer or a CrossEncoder.
        stored: its layers, by how they are stored.
        notes: sentences about it for the output of a run.
    """

    model: Any
    stored: StoredLayers
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Stored(LoadedModel):
    """A loaded checkpoint as one side of a comparison.

    Attributes:
        layers: names of the packed layers.
        checkpoint: its files.
        stored_bits: bits per weight, counted in its files; None if unknown.
    """

    layers: Sequence[str] | None
    checkpoint: Checkpoint
    stored_bits: BitsReport | None

    @property
    def foreign(self) -> ForeignModule | None:
        """The module that another library computes; None if torch computes all modules."""
        modules = (module for root in self.modules for module in root.modules())
        return next((module for module in modules if isinstance(module, ForeignModule)), None)

    def bits(self) -> BitsReport | None:
        """Bits per weight, counted in its files."""
        return self.stored_bits

    def identify(self) -> dict[str, Any]:
        """Return the origin of the model for the record of a run, as JSON values."""
        return {**self.checkpoint.identify(), "fingerprint": self.fingerprint}

    @cached_property
    def fingerprint(self) -> str:
        """Digest of all that decides its outputs.

        That is weights as loaded, settings of the transformer, tokenizer, prompts, the modules behind the transformer,
        format, kernels and libraries.
        """
        if self.checkpoint.method == "quantdrift" and self.foreign is None:
            # the fingerprint in a run of its scheme; scheme.json ensures that its settings are those of the model
            return weights_fingerprint(self.modules)
        digest = hashlib.blake2b(digest_size=16)
        computed = self._computed()
        parts = {
            **self.beside_weights(),
            "format": self.checkpoint.method,
            "quantization": self.checkpoint.quantization,
            **computed["libraries"],
            "kernels": computed["kernels"],
            "settings": sentence.reading_digest([], self.modules),
        }
        digest.update(json.dumps(parts, sort_keys=True, default=str).encode())
        for name, tensor in sorted(self.module.state_dict().items()):
            add_tensor(digest, name, tensor)
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """Return how it is quantized for the record of a run, as JSON values."""
        return {
            **self.checkpoint.describe(),
            "dtype": f"torch.{sentence.floating_dtype(self)}",
            **self._computed(),
            "notes": list(self.notes),
        }

    def _computed(self) -> dict[str, Any]:
        """Return the classes of the packed layers with their numbers, and the libraries that compute them."""
        if (foreign := self.foreign) is not None:
            return foreign.computed()
        kernels: Counter[str] = Counter()
        modules = {_in_body(name): module for name, module in self.module.named_modules()}
        for module in (modules[name] for name in self.layers or () if name in modules):
            weight = getattr(module, "weight", None)
            special = isinstance(weight, Tensor) and type(weight) not in {Tensor, nn.Parameter}
            kernels[type(module).__name__ + (f" of {type(weight).__name__}" if special else "")] += 1
        names = [package.name for package in packages_for(self.checkpoint.method)]
        libraries = {name: version_of(name) or "not installed" for name in names}
        return {"kernels": dict(kernels), "libraries": libraries}


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredCandidate(_Stored, sentence.SentenceEncoder):
    """An embedding model loaded from a checkpoint; `layers` are the packed ones."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredReranker(_Stored, CrossEncoderModel):
    """A cross-encoder loaded from a checkpoint; `layers` are the packed ones."""


def _in_body(name: str) -> str:
    """Return a layer's name in the transformer, which sentence-transformers keeps in 0.model."""
    return name.split(".", 2)[-1]


# --- loading --------------------------------------------------------------------------------------


def load_checkpoint(
    checkpoint: Checkpoint, reference: Reference | None, *, device: torch.device
) -> "StoredCandidate | StoredReranker":
    """Load a checkpoint as the candidate of a reference, of the same kind as this.

    A folder that does not say how tokens become an embedding (no modules.json), and a file that is read alone, take
    pooling, normalization, prompts and length limit from the reference, and its tokenizer where they have none.
    """
    reranks = isinstance(reference, CrossEncoderModel)
    refuse_missing(checkpoint)
    if reference is None and not checkpoint.has_modules:
        raise UnsupportedError(
            f"{checkpoint.name} says nothing of {_TAKEN}, and a server cannot lend them; expected "
            "a folder with modules.json, as SentenceTransformer.save_pretrained writes it"
        )
    source = candidate_source(checkpoint)
    what = f"checkpoint (format {checkpoint.method})"
    kind = "CrossEncoder" if reranks else "SentenceTransformer"
    with loading(source, what, kind=kind, hqq=checkpoint.method == "hqq") as log, _process_undisturbed(checkpoint):
        if checkpoint.file is not None:
            form = MODEL_FILES[checkpoint.method]
            if reranks and not form.classifier:
                raise UnsupportedError(f"{checkpoint.name} is {form.what}, which gives no scores here; expected ONNX")
            loaded: Loaded = imported(form.encoder)(checkpoint, reference, device)
        elif checkpoint.method == "quantdrift":
            loaded = _from_candidate(checkpoint, source, device)
        else:
            loaded = _from_folder(checkpoint, reference, device)
        log.notes += try_text(loaded.model.eval(), source.name)
    read: Callable[..., Any] = cross_encoder_of if reranks else sentence.encoder_of
    encoder = read(loaded.model, source)
    notes = [*log.notes, *loaded.notes, *(WARNED if checkpoint.method == UNASKED else ())]
    if reference is not None:
        notes += _notes(checkpoint, reference)
        others = sentence.differences(reference, encoder)
        # the pooling inside a graph cannot be seen
        unseen = isinstance(encoder.model[0].auto_model, ForeignModule) and len(encoder.model) == 1
        notes += [note for note in others if not (unseen and "differ in pooling" in note)]
    return (StoredReranker if reranks else StoredCandidate)(
        model=loaded.model,
        source=source,
        similarity=encoder.similarity,
        notes=tuple(notes),
        layers=loaded.stored.packed,
        checkpoint=checkpoint,
        stored_bits=loaded.stored.bits,
    )


def candidate_source(checkpoint: Checkpoint) -> ModelSource:
    """Return the source of a checkpoint for loaders: a hub model has been downloaded by now."""
    return ModelSource(
        name=checkpoint.name, canonical=checkpoint.canonical, kind="local", location=str(checkpoint.folder)
    )


@contextmanager
def _process_undisturbed(checkpoint: Checkpoint) -> Iterator[None]:
    """Undo the changes of libraries to the process, so that the reference computes as in any other run.

    Some print a greeting on standard output, which may hold a record, and some set the precision of float32 products.
    """
    loud = "gptqmodel" in [package.name for package in packages_for(checkpoint.method)]
    with float32_products(), redirect_stdout(io.StringIO()), silenced(import_gptqmodel()[1]) if loud else nullcontext():
        yield


def _from_candidate(checkpoint: Checkpoint, source: ModelSource, device: torch.device) -> Loaded:
    """Load a candidate that `quantdrift quantize` wrote."""
    record = read_record(checkpoint.folder)
    check_weights(checkpoint.folder, record)
    names = tuple(_in_body(layer["name"]) for layer in record["layers"])
    bits = BitsReport(**checkpoint.quantization["bits_per_weight"])
    encoder = sentence.load_encoder(source, device=device, dtype="auto")
    return Loaded(model=encoder.model, stored=StoredLayers(packed=names, bits=bits), notes=encoder.notes)


def _from_folder(checkpoint: Checkpoint, reference: Reference | None, device: torch.device) -> Loaded:
    """Load a folder by transformers."""
    reranks = isinstance(reference, CrossEncoderModel)
    config = AutoConfig.from_pretrained(checkpoint.body, trust_remote_code=False)
    auto = _class_of(config, checkpoint.name, reranks=reranks)
    with torch.device("meta"):  # only names and shapes of its layers
        empty: nn.Module = auto.from_config(config)
    tensors = stored_tensors(checkpoint.body)
    stored = stored_layers(tensors, empty)
    notes: list[str] = []
    quantization = completed(checkpoint, stored)
    if checkpoint.method == "bitsandbytes":
        shapes = {name: tuple(p.weight.shape) for name, p in empty.named_modules() if isinstance(p, nn.Linear)}
        check_bitsandbytes(checkpoint.body, tensors, shapes)
    if checkpoint.method in KERNELS:
        quantization |= kernel_for(quantization, device)
        notes = check_gptq(checkpoint, tensors)
    if quantization:
        config.quantization_config = quantization
    on_kernels = checkpoint.method not in {"none", "hqq"} and device.type != "cpu"
    weights, dtype = unpacked(checkpoint.body) if checkpoint.method == "hqq" else (None, "auto")
    kwargs: dict[str, Any] = {"dtype": dtype, **({"device_map": str(device)} if on_kernels else {})}
    with made_of(weights):
        if checkpoint.has_modules:
            model = (CrossEncoder if reranks else SentenceTransformer)(
                str(checkpoint.folder),
                device=None if on_kernels else str(device),  # kernels are chosen while it is loaded
                model_kwargs=kwargs,
                config_kwargs={"quantization_config": quantization} if quantization else {},
            )
            stored = stored_layers(tensors, empty, others=list(model.children())[1:])
        else:
            body = auto.from_pretrained(checkpoint.folder, config=config, trust_remote_code=False, **kwargs)
            model = dressed(checkpoint, reference, body, device)
    _decompress(_body_of(model))
    return Loaded(model=model, stored=stored, notes=tuple(notes))


def _decompress(body: Any) -> None:
    """Unpack weights of compressed-tensors into the model's number type.

    The library unpacks them at the first call of the transformer, which sentence-transformers bypasses, and unpacks
    four bits to bfloat16, whatever the type of the model. Inputs are still rounded as config.json says.
    """
    if hasattr(body, "ct_decompress_hook"):
        dtype = body.dtype
        body.hf_quantizer.compressor.decompress_model(body)
        body.to(dtype)


def _class_of(config: PretrainedConfig, name: str, *, reranks: bool) -> Any:
    """Return the class of transformers that reads a checkpoint; for a reranker, one with a head."""
    architecture = next(iter(getattr(config, "architectures", None) or []), "")
    if reranks and (head := next((head for head in _SCORING if architecture.endswith(head)), None)):
        return getattr(transformers, f"AutoModel{_SCORING[head]}")
    if architecture.endswith(_HEADS):
        raise UnsupportedError(
            f"{name} is a {architecture}, not an embedding model: its scores are not made of embeddings"
        )
    return transformers.AutoModel


def completed(checkpoint: Checkpoint, stored: StoredLayers) -> dict[str, Any]:
    """Return the quantization_config that transformers needs to load the stored layers."""
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
    # transformers skips a method that it does not know, and would take codes for weights
    if quantization and not AutoHfQuantizer.supports_quant_method(quantization):  # type: ignore[no-untyped-call]
        raise UnsupportedError(
            f"{checkpoint.name} is quantized by {checkpoint.method}, which transformers {version_of('transformers')} "
            "does not read; expected the same weights as compressed-tensors, or a server that runs it"
        )
    if checkpoint.method == "awq":
        quantization["modules_to_not_convert"] = [*stored.plain, *stored.missing] or None
    if checkpoint.method == "gptq" and not quantization.get("block_name_to_quantize"):
        matches = [_BLOCK.fullmatch(name) for name in stored.packed]
        blocks = {match[1] for match in matches if match}
        if len(blocks) != 1 or not all(matches):
            raise UnsupportedError(
                f"{checkpoint.name} packs layers outside of one list of blocks; optimum loads GPTQ within one only"
            )
        inside = dict.fromkeys(match[2] for match in matches if match)
        quantization |= {
            "block_name_to_quantize": blocks.pop(),
            "modules_in_block_to_quantize": [[name] for name in inside],
        }
    return quantization


# --- classifiers ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredClassifier(_Stored, Classifier):
    """A classifier loaded from a checkpoint; `layers` are the packed ones."""


def load_stored_classifier(checkpoint: Checkpoint, *, device: torch.device) -> StoredClassifier:
    """Load a classifier as a candidate: a model file of another library, or a checkpoint that is not quantized."""
    read = MODEL_FILES[checkpoint.method].classifier if checkpoint.file is not None else ""
    if read:
        classifier, stored = imported(read)(checkpoint, device)
    elif checkpoint.method == "none":
        classifier = load_classifier(candidate_source(checkpoint), device=device, dtype="auto")
        stored = stored_layers(stored_tensors(checkpoint.body), classifier.module)
    else:
        raise UnsupportedError(
            f"{checkpoint.name} is a classifier quantized by {checkpoint.method}; expected an ONNX model with logits, "
            "or weights that are not quantized"
        )
    parts = {field.name: getattr(classifier, field.name) for field in fields(Classifier)}
    return StoredClassifier(**{**parts, "layers": stored.packed}, checkpoint=checkpoint, stored_bits=stored.bits)


# --- parts taken from the reference, and differences from it ------------------------------------


def dressed(checkpoint: Checkpoint, reference: Reference | None, body: Any, device: torch.device) -> Any:
    """Copy the reference's model with another transformer in place of its own."""
    assert reference is not None  # a checkpoint that needs one was refused without it
    original: Any = _body_of(reference.model)
    here, there = (
        {
            "kind": module.config.model_type if isinstance(body, ForeignModule) else type(module).__name__,
            **{key: getattr(module.config, key, None) for key in ("hidden_size", "vocab_size")},
        }
        for module in (original, body)
    )
    if here != there:
        raise UnsupportedError(
            f"{checkpoint.name} does not say what follows its transformer (no modules.json), and the reference's "
            f"modules do not fit: {there} instead of {here}. Save it by save_pretrained of sentence-transformers, or "
            "name the model it was made of"
        )
    model = copy.deepcopy(reference.model, {id(original): body})  # the copy has the other transformer
    if (folder := _tokenizer_folder(checkpoint, reference)) is not None:
        holder = "processor" if hasattr(model[0], "processor") else "tokenizer"
        setattr(model[0], holder, AutoTokenizer.from_pretrained(folder, trust_remote_code=False))
        model.max_seq_length = reference.model.max_seq_length
    return model.to(device)


def _tokenizer_folder(checkpoint: Checkpoint, reference: Reference) -> Path | None:
    """Return the folder of a checkpoint's tokenizer; None to take the reference's, as for a chat template."""
    alone = checkpoint.file is not None and not MODEL_FILES[checkpoint.method].companions
    has_one = any((checkpoint.folder / name).is_file() for name in _TOKENIZERS)
    templated = getattr(reference.model[0], "transformer_task", None) == "text-generation"
    return checkpoint.folder if has_one and not alone and not templated else None


def _body_of(model: Any) -> nn.Module:
    """Return the transformer of a SentenceTransformer."""
    body = getattr(model[0], "auto_model", None)
    if not isinstance(body, nn.Module):
        raise UnsupportedError(
            f"expected an embedding model whose first module is a transformer; got {type(model[0]).__name__}"
        )
    return body


def _notes(checkpoint: Checkpoint, reference: Reference) -> Iterator[str]:
    """Yield notes on the differences between candidate and reference, beside their weights."""
    if not checkpoint.has_modules:
        taken = _TAKEN_TO_RERANK if isinstance(reference, CrossEncoderModel) else _TAKEN
        taken = taken if _tokenizer_folder(checkpoint, reference) is not None else f"tokenizer, {taken}"
        yield f"{checkpoint.name} says nothing of {taken}: taken from the reference"
    if checkpoint.method == "none" and (files := list(files_in(checkpoint.folder))):
        yield (
            f"{checkpoint.name} holds weights of torch, which were run, and files of other libraries, which were not: "
            f"to run one, name it, such as {checkpoint.name}/{files[0]}"
        )
    if checkpoint.method == "quantdrift":
        base = read_record(checkpoint.folder).get("base_model", {}).get("canonical")
        if base not in {None, reference.source.canonical}:
            yield (
                f"{checkpoint.name} was made of {base}, not of {reference.source.canonical}: what changes is not from "
                "quantization alone"
            )
