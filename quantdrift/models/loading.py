"""Models are loaded with our settings, whatever their files say, and warnings of libraries become notes.

Every loader of torch models here, sentence-transformers, the harnesses and transformers' own classes, ends in one
function: PreTrainedModel.from_pretrained. Inside `loading` that function reads no pickles, takes no code from
the hub, computes in float32 unless its caller says otherwise, and tells which weights were missing, so that none is
drawn at random in silence.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal, Required, TypedDict

import torch
from torch import nn

from quantdrift.base.display import clean, in_one_line, shorten, shown
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.extras import extras_named
from quantdrift.base.logs import captured_logs
from quantdrift.base.text import some
from quantdrift.models.endless import TRIED
from quantdrift.models.files.named import ModelSource
from quantdrift.models.files.tensors import FLOATS, read_head
from quantdrift.models.vetting import vet

DECIDED = {
    "weights_only": True,
    "ignore_mismatched_sizes": False,
    "allow_all_kernels": False,
    "use_kernels": False,
    "kernel_config": None,
}
"""Arguments of every from_pretrained; unless a model is trusted, also `use_safetensors` and no code of its own."""
_LOGGERS = ("transformers", "sentence_transformers", "timm")
_REPORT = "LOAD REPORT"
"""The title under which transformers logs missing and unused weights, which are noted or refused here."""
_WORDS, _ROWS = 1, 4
"""A tokenizer is not the model's own if it has at most so many tokens beside special ones, like one that transformers
makes up, or if the embedding matrix has more than so many rows per token; a padded matrix has 1.2."""
_PADDED = 1 << 13
"""Tokens that every text may be padded to."""
_MESSAGE = 400
"""Characters of a library's warning that a note repeats."""
_NAMED = 3
"""Most weights that a note names."""
_COMPUTED = ("position_ids", "inv_freq", "num_batches_tracked", "relative_position_index")
"""Ends of the names of buffers that older versions stored and newer ones compute."""
_WHOLE = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
"""Number types of weights that are not quantized."""


class Placed(TypedDict, total=False):
    """Arguments of loading: device, revision, number type, and whether code of the model may run."""

    device: Required[torch.device]
    revision: str | None
    dtype: str
    trusted: bool


Reads = Literal["states", "head"]
"""The part of a model that is read: the states of its tokens, without head and pooler, or its head."""


@dataclass(slots=True, kw_only=True)
class LoadLog:
    """Warnings of libraries while a model was loaded, as notes of a run."""

    notes: list[str] = field(default_factory=list)
    report: str = ""

    def hear(self, record: logging.LogRecord) -> None:
        """Turn a record of a library's log into a note."""
        text = record.getMessage()
        if _REPORT in text:
            self.report = text
            return
        library = record.name.partition(".")[0].replace("_", "-")
        note = f"{library} warns: {shorten(clean(text), _MESSAGE).rstrip('.')}"
        if note not in self.notes:
            self.notes.append(note)


def quiet_loading() -> None:
    """Turn off the progress bars of libraries from now on."""
    from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415 -- takes seconds to import

    disable_progress_bar()  # type: ignore[no-untyped-call]  # untyped there


def reading_files(source: ModelSource, what: str = "model") -> AbstractContextManager[None]:
    """Turn any error of a library that reads a model into one line."""
    where = "from the hub" if source.kind == "hub" else f"from {source.location}"
    problem = f"the {what} {source.shown} cannot be loaded {where}"
    return in_one_line(problem, source.otherwise)


@contextmanager
def loading(
    source: ModelSource,
    what: str = "model",
    *,
    reads: Reads = "states",
    revision: str | None = None,
    trusted: bool = False,
    kind: str = "SentenceTransformer",
    hqq: bool = False,
) -> Iterator[LoadLog]:
    """Vet a model; inside, loaders use our settings, and any error of a library becomes one line.

    `hqq` says that its weights are unpacked here, by no library. The log that it yields has the warnings of libraries
    and the weights that were missing or left over.
    """
    log = LoadLog()
    with reading_files(source, what), extras_named(needed_for=f"the {what} {source.name!r}"):
        vet(source, revision, trusted=trusted, kind=kind, hqq=hqq)
        quiet_loading()
        with captured_logs(_LOGGERS, log.hear), _read_as_decided(source, log, reads, trusted=trusted):
            yield log
    if trusted:
        log.notes.append(f"Python code that comes with {source.name} was allowed to run")


def text_rows(module: nn.Module) -> tuple[int, int | None, int | None]:
    """Return the rows of the token embedding matrix, the usable positions, and the positions that config.json states.

    Rows are 0 if no such matrix is found; positions are None if they are computed, not looked up.
    """
    rows, usable, stated = 0, [], []
    for part in module.modules():
        with suppress(NotImplementedError, AttributeError, StopIteration):
            matrix: Any = part if isinstance(part, nn.EmbeddingBag) else part.get_input_embeddings()  # type: ignore[operator]
            rows = max(rows, matrix.num_embeddings)
            holder = next(outer for outer in module.modules() if any(child is matrix for child in outer.children()))
            for name, child in holder.named_children():
                if isinstance(child, nn.Embedding) and ("position" in name or name == "wpe"):
                    # RoBERTa starts behind the position of padding, BART at the third
                    skipped = getattr(child, "offset", 0 if child.padding_idx is None else child.padding_idx + 1)
                    said = getattr(getattr(part, "config", None), "max_position_embeddings", child.num_embeddings)
                    usable.append(min(child.num_embeddings - skipped, said))
                    stated.append(said)
    return rows, min(usable, default=None), min(stated, default=None)


def refuse_unfit_tokenizer(module: Any, name: str, tokenizer: Any = None) -> None:
    """Refuse a model whose tokenizer does not fit it.

    The tokenizer may be made up by transformers because its files are missing, a token may have no row in the embedding
    matrix, or texts may be longer than the model has positions.
    """
    tokenizer = getattr(module, "tokenizer", None) if tokenizer is None else tokenizer
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor for texts and images
    if not hasattr(tokenizer, "get_vocab"):
        return
    vocabulary = tokenizer.get_vocab()
    rows, _, positions = text_rows(module)
    n_words = len(vocabulary) - len(getattr(tokenizer, "all_special_ids", ()))
    if n_words <= _WORDS or rows > _ROWS * len(vocabulary):
        raise UnsupportedError(
            f"the tokenizer of {name} knows {len(vocabulary):,} tokens, and its embedding matrix has {rows:,} rows: "
            "tokenizer files are missing in its folder. Copy them there (tokenizer.json, tokenizer_config.json) from "
            "the model that it was made of"
        )
    last = max(vocabulary, key=vocabulary.__getitem__)
    if 0 < rows <= vocabulary[last]:
        raise UnsupportedError(
            f"the tokenizer of {name} has the token {shown(last)} as number {vocabulary[last]:,}, and its embedding "
            f"matrix has {rows:,} rows, from number 0: a text with that token cannot be read. Take it out of the "
            "tokenizer's files, or save the model after model.resize_token_embeddings(len(tokenizer)) and training"
        )
    longest = getattr(tokenizer, "model_max_length", 1)
    most = inf if positions is None or not hasattr(module, "max_seq_length") else positions
    if type(longest) not in {int, float} or not 1 <= longest <= most:
        raise UnsupportedError(
            f"{name} takes texts of {shown(str(longest))} tokens, its files say; expected a number from 1"
            f"{'' if positions is None else f' to {positions:,}, the positions that it has'}. Set max_seq_length in "
            "sentence_bert_config.json, or model_max_length in tokenizer_config.json"
        )


def try_text(model: Any, name: str) -> list[str]:
    """Run one short text through a model of sentence-transformers, and return notes.

    An error at the first text is then reported as one of loading. Lengths are checked before, as files may pad every
    text.
    """
    refuse_unfit_tokenizer(model, name)
    notes, (_, usable, _) = [], text_rows(model)
    if usable is not None and (model.max_seq_length or 0) > usable:  # sentence-transformers' own limit for RoBERTa
        notes.append(f"{name} has {usable:,} positions, and its files set no such limit: longer texts are cut there")
        model.max_seq_length = usable
    how = getattr(model[0], "processing_kwargs", None) or {}
    texts = {**how.get("common", {}), **how.get("text", {})}
    lengths = [texts.get("max_length"), *(getattr(model[0], f"{role}_length", None) for role in ("query", "document"))]
    padded = [(getattr(model[0], "query_expansion", None) or {}).get("length")]
    if texts.get("padding") == "max_length":
        padded.append(texts.get("max_length") or model.max_seq_length)
    for most, asked in ((usable, [*lengths, *padded]), (_PADDED, padded)):
        if (longest := max(filter(None, asked), default=0)) > (most or inf):
            raise UnsupportedError(f"{name} makes texts of {longest:,} tokens; expected at most {most:,}")
    if hasattr(model, "predict"):
        model.predict([(TRIED, TRIED)], show_progress_bar=False)
    elif "text" in getattr(model, "modalities", ("text",)):
        try:
            model.encode_query([TRIED], show_progress_bar=False)
        except KeyError as error:  # its modules are those of another class, or hand on something by another name
            kind = type(model).__name__
            raise UnsupportedError(
                f"{name!r} is no {kind}: none of its modules makes its {shown(str(error))}"
            ) from error
    return notes


def on_rules(model: Any, name: str, revision: str | None = None) -> list[str]:
    """Note a tokenizer of transformers that splits a text otherwise than its tokenizer.json does.

    For some models transformers silently takes only the vocabulary from that file, and the rules from its own code or
    from other files.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 -- comes with transformers, which takes seconds to import
    from transformers.utils.hub import cached_file  # noqa: PLC0415 -- likewise

    with suppress(Exception):  # of images alone, of one vector a word, or without that file
        tokenizer = getattr(model, "tokenizer", model)
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor for texts and images
        file = cached_file(tokenizer.name_or_path, "tokenizer.json", revision=revision, local_files_only=True)
        rules = Tokenizer.from_file(str(file))
        rules.no_truncation()
        rules.no_padding()
        tokens, stated = tokenizer(TRIED)["input_ids"], rules.encode(TRIED).ids
        if tokens != stated:
            counts = f"{len(tokens)} tokens of a text that has {len(stated)} by the file"
            return [
                f"{name} is not read by its tokenizer.json alone, which other runtimes take: "
                f"{type(tokenizer).__name__} of transformers has rules of its own ({counts})"
            ]
    return []


# --- which weights were read ----------------------------------------------------------------------


@contextmanager
def _read_as_decided(source: ModelSource, log: LoadLog, reads: Reads, *, trusted: bool) -> Iterator[None]:
    import safetensors.torch  # noqa: PLC0415 -- beside transformers, which takes seconds to import
    from transformers import PreTrainedModel, core_model_loading, modeling_utils  # noqa: PLC0415 -- as above

    module: Any = modeling_utils
    files: dict[Path, None] = {}
    wrong: set[torch.dtype] = set()
    original = PreTrainedModel.__dict__["from_pretrained"]
    decided = DECIDED if trusted else {**DECIDED, "use_safetensors": True, "trust_remote_code": False}

    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        asked = kwargs.pop("output_loading_info", False)
        if "torch_dtype" not in kwargs:
            kwargs.setdefault("dtype", "float32")  # transformers would take the type of the files
        try:
            model, info = original.__func__(cls, *args, **{**kwargs, **decided, "output_loading_info": True})
        except RuntimeError as error:
            rows = [row.partition("|") for row in log.report.splitlines()]
            if names := [clean(name) for name, _, status in rows if "MISMATCH" in status]:
                raise UnsupportedError(
                    f"{source.name} stores weights of another shape than its config.json says: {some(names, _NAMED)}; "
                    "expected the config.json that they were saved with"
                ) from error
            raise
        _judge(model, info, source.name, log, reads)
        if wrong and getattr(model, "hf_quantizer", None) is None:
            _refuse_codes(files, source.name, min(map(str, wrong)))
        return (model, info) if asked else model

    def read(file: Any, **how: Any) -> Any:  # a mapped file would be in memory as a whole, beside the weights
        files[Path(file)] = None
        return mapped(file, **{**how, **({"backend": "pread"} if "backend" in how else {})})

    def place(tensor: Any, device: Any = None, dtype: Any = None) -> Any:  # what transformers casts to a type of ours
        values = tensor[...]
        if dtype in _WHOLE and values.dtype not in _WHOLE:
            wrong.add(values.dtype)
        return placed(values, device, dtype)

    def load(file: Any, **how: Any) -> Any:  # modules of sentence-transformers, adapters and open_clip's models
        _refuse_codes([file], source.name)
        return whole(file, **how)

    mapped, module.safe_open = module.safe_open, read
    casts: Any = core_model_loading
    placed, casts._materialize_copy = casts._materialize_copy, place
    files_of: Any = safetensors.torch
    whole, files_of.safe_open = files_of.safe_open, load
    PreTrainedModel.from_pretrained = classmethod(from_pretrained)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        PreTrainedModel.from_pretrained = original  # type: ignore[method-assign]
        module.safe_open, casts._materialize_copy, files_of.safe_open = mapped, placed, whole


def _refuse_codes(files: Iterable[str | Path], name: str, cast: str = "") -> None:
    """Refuse integers, 8-bit floats and complex numbers as weights: a cast would turn them into other weights."""
    heads = [read_head(Path(file)) for file in files]
    codes = [f"{key} as {tensor.dtype}" for head in heads for key, tensor in head.items() if tensor.dtype not in FLOATS]
    codes = [code for code in codes if not code.rpartition(" as ")[0].endswith(_COMPUTED)]
    if codes or cast:
        raise UnsupportedError(
            f"{name} stores {some(list(map(clean, codes)), _NAMED) or cast}, and nothing says which numbers that "
            f"stands for: it would be another model; expected {', '.join(sorted(FLOATS))}, or a quantization_config"
        )


def _judge(model: Any, info: dict[str, Any], name: str, log: LoadLog, reads: Reads) -> None:
    """Refuse a model with weights that no file holds, as transformers draws them at random; note unused weights.

    A head or pooler that no embedding depends on may be missing. It is set to zero, so that every load gives the same
    model.
    """
    kind, there = type(model).__name__, model.state_dict()
    missing = sorted(key for key in info["missing_keys"] if key in there and not key.endswith(_COMPUTED))
    unused = [key for key in missing if reads == "states" and not _read(model, key)]
    if random := sorted({*missing} - {*unused} | {str(mismatch[0]) for mismatch in info.get("mismatched_keys", ())}):
        raise UnsupportedError(
            f"{name} has no weights for {random[0]}{f' and {len(random) - 1} more' if len(random) > 1 else ''} of its "
            f"{kind}, which would be random numbers; expected all of them, under the names that save_pretrained of "
            "transformers gives them"
        )
    for key in unused:
        with torch.no_grad():
            there[key].zero_()
    if unused:
        log.notes.append(f"{name} has no weights for {some(unused, _NAMED)}, which no embedding is made of")
    left = sorted(key for key in info["unexpected_keys"] if not key.endswith(_COMPUTED))
    if left:
        log.notes.append(f"{name} stores {some(left, _NAMED)}, which {kind} has no use for: left out")


def _read(model: Any, name: str) -> bool:
    """Say whether an embedding can depend on a weight."""
    prefix = str(getattr(model, "base_model_prefix", ""))
    with_head = bool(prefix) and hasattr(model, prefix)
    return not ("pooler" in name.split(".") or (with_head and not name.startswith(f"{prefix}.")))
