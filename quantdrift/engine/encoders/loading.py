"""A model is loaded as we decide, whatever its files say, and what its libraries tell of it is kept.

Every loader of torch models here, sentence-transformers, the harnesses and transformers' own classes, ends in one
function: PreTrainedModel.from_pretrained. Inside `loading` that function reads no pickles, takes no code from
the hub, computes in float32 unless its caller says otherwise, and tells which weights were missing, so that none is
drawn at random in silence.
"""

import logging
import pickle
from collections.abc import Iterator, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Required, TypedDict

import torch
from torch import nn

from quantdrift.base.display import clean, shorten
from quantdrift.base.errors import QuantDriftError, UnsupportedError
from quantdrift.base.extras import extras_named
from quantdrift.base.logs import heard
from quantdrift.base.text import some
from quantdrift.checkpoints.named import ModelSource, first_line
from quantdrift.engine.encoders.vetting import vet

DECIDED = {
    "weights_only": True,
    "ignore_mismatched_sizes": False,
    "allow_all_kernels": False,
    "use_kernels": False,
    "kernel_config": None,
}
"""Arguments of every from_pretrained; without trust in a model's own code, `use_safetensors` and no such code, too."""
_LOGGERS = ("transformers", "sentence_transformers", "timm", "peft")
_REPORT = "LOAD REPORT"
"""Of what transformers logs: the weights that are missing or left over, which are told or refused here."""
_WORDS, _ROWS = 1, 4
"""Tokens beside special ones of a tokenizer that transformers makes up; and rows of an embedding table for each token
of a tokenizer that is its own at most: tables that are padded have 1.2."""
_MESSAGE = 400
"""Characters of what a library says that are repeated."""
_TRIED = "The 2nd café: don't pay $3.50 for ﬁne ÀÉ,  Zürich's 東京\n x_y #1"
"""A text of which other rules make other tokens."""
_NAMED = 3
"""Weights that a note names."""
_COMPUTED = ("position_ids", "inv_freq", "num_batches_tracked")
"""Ends of names that older versions stored, and that are computed."""


class Placed(TypedDict, total=False):
    """Where weights are loaded to, of which revision, in which number type, and whether code of a model may run."""

    device: Required[torch.device]
    revision: str | None
    dtype: str
    trusted: bool


Reads = Literal["states", "head"]
"""What is read of a model: the states of its tokens, of which neither head nor pooler is a part, or its head."""


@dataclass(slots=True, kw_only=True)
class LoadLog:
    """Warnings of libraries while a model was loaded: one sentence each, as a run's notes."""

    notes: list[str] = field(default_factory=list)
    report: str = ""

    def hear(self, record: logging.LogRecord) -> None:
        """Make a note of what a library logs."""
        text = record.getMessage()
        if _REPORT in text:
            self.report = text
            return
        library = record.name.partition(".")[0].replace("_", "-")
        note = f"{library} warns: {shorten(clean(text), _MESSAGE).rstrip('.')}"
        if note not in self.notes:
            self.notes.append(note)


def quiet_loading() -> None:
    """Let libraries show no progress of their own from now on."""
    from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415 -- takes seconds to import

    disable_progress_bar()  # type: ignore[no-untyped-call]  # untyped there


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
    """Vet a model; inside, it is loaded as we decide, and whatever goes wrong in a library becomes one line.

    `hqq` says that its weights are unpacked here, by no library. What libraries warn of, and weights that nothing was
    read into, are in the notes that it gives when it ends.
    """
    where = "from the hub" if source.kind == "hub" else f"from {source.location}"
    log = LoadLog()
    try:
        with extras_named(needed_for=f"the {what} {source.name!r}"):
            vet(source, revision, trusted=trusted, kind=kind, hqq=hqq)
            quiet_loading()
            with heard(_LOGGERS, log.hear), _read_as_decided(source, log, reads, trusted=trusted):
                yield log
        if trusted:
            log.notes.append(f"Python code that comes with {source.name} was allowed to run")
    except QuantDriftError:
        raise
    except BaseException as error:  # a dozen libraries read models, each with its own errors
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # Rust's
            raise
        raise UnsupportedError(
            f"the {what} {source.name!r} ({source.canonical}) cannot be loaded {where}: "
            f"{one_line(error).rstrip('.')}{source.otherwise}"
        ) from error


def one_line(error: BaseException) -> str:
    """Return the first line of what a library said."""
    if isinstance(error, pickle.UnpicklingError):
        return (
            "its weights are pickled Python, which could run anything; expected safetensors, as "
            "save_pretrained of transformers writes them"
        )
    return shorten(clean(f"{type(error).__name__}: {first_line(error)}"), _MESSAGE)


def refuse_small_vocabulary(module: nn.Module, name: str, tokenizer: Any = None) -> None:
    """Refuse a model whose tokenizer files are missing: transformers makes one up of a few tokens."""
    tokenizer = getattr(module, "tokenizer", None) if tokenizer is None else tokenizer
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor for texts and images
    if not isinstance(tokenizer, Sized):
        return
    rows = 0
    for part in module.modules():
        with suppress(NotImplementedError, AttributeError):
            rows = max(rows, part.get_input_embeddings().num_embeddings)  # type: ignore[operator]
    if len(tokenizer) - len(getattr(tokenizer, "all_special_ids", ())) <= _WORDS or rows > _ROWS * len(tokenizer):
        raise UnsupportedError(
            f"the tokenizer of {name} knows {len(tokenizer):,} tokens, and its embedding table has {rows:,} rows: "
            "tokenizer files are missing in its folder. Copy them there (tokenizer.json, tokenizer_config.json) from "
            "the model that it was made of"
        )


def on_rules(model: Any, name: str, revision: str | None = None) -> list[str]:
    """Say where a model or tokenizer reads texts by other rules than those of its tokenizer.json.

    Of some kinds of models transformers takes the vocabulary from that file and rules from its own code or from the
    tokenizer's other files, and does not say so.
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
        tokens, stated = tokenizer(_TRIED)["input_ids"], rules.encode(_TRIED).ids
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
    from transformers import PreTrainedModel, modeling_utils  # noqa: PLC0415 -- takes seconds to import

    module: Any = modeling_utils
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
        return (model, info) if asked else model

    def read(file: Any, **how: Any) -> Any:  # a mapped file would be in memory as a whole, beside the weights
        return mapped(file, **{**how, **({"backend": "pread"} if "backend" in how else {})})

    mapped, module.safe_open = module.safe_open, read
    PreTrainedModel.from_pretrained = classmethod(from_pretrained)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        PreTrainedModel.from_pretrained = original  # type: ignore[method-assign]
        module.safe_open = mapped


def _judge(model: Any, info: dict[str, Any], name: str, log: LoadLog, reads: Reads) -> None:
    """Refuse a model with weights that no file holds, which transformers draws at random; note what is left over.

    A head, or a pooler, that no embedding is made of may be missing: it is set to zero, so that a model is the same
    each time it is loaded.
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
    """Whether an embedding can be made of a weight."""
    prefix = str(getattr(model, "base_model_prefix", ""))
    with_head = bool(prefix) and hasattr(model, prefix)
    return not ("pooler" in name.split(".") or (with_head and not name.startswith(f"{prefix}.")))
