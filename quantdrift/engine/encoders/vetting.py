"""A model looked at before a library reads it, and what goes wrong in a library in one line.

A checkpoint may come from anybody. The libraries that read one run code that its files name, each in its own way;
make a model as large as its config.json says; and speak of a damaged file without its name. So the files that decide
this are read here first.
"""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from torch import nn

from quantdrift.display import clean, shorten, shown
from quantdrift.engine.encoders.stored import read_head, weight_files
from quantdrift.errors import QuantDriftError, UnsupportedError
from quantdrift.extras import extras_named
from quantdrift.models.classifier_config import model_json
from quantdrift.models.named import ModelSource, first_line

_MODULE = re.compile(r"sentence_transformers(\.\w+)+\.[A-Z]\w*")
_KERNEL = re.compile(r"_?(attn|experts)_implementation(_internal)?")
_MOST = {re.compile(r"\w*(layers?|blocks|depths?)"): 10_000, re.compile(r"num_(labels|classes)"): 1_000_000}
"""Numbers of a config.json by which a library builds objects before it looks into a file."""
_TALKATIVE = ("sentence_transformers", "timm", "torchao", "torch.utils._pytree")
"""Loggers that warn of what has no bearing on a model: GPU extensions, each other's deprecations."""
_WORDS, _ROWS = 1, 4
"""Tokens beside special ones of a tokenizer that transformers makes up; and rows of an embedding table for each token
of a tokenizer that is its own at most: tables that are padded have 1.2."""
_MESSAGE = 400
"""Characters of what a library says that are repeated."""


def quiet_loading() -> None:
    """Let libraries log errors only from now on, and show no progress of their own."""
    from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415 -- takes seconds to import

    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)
    disable_progress_bar()  # type: ignore[no-untyped-call]  # untyped there


@contextmanager
def loading(
    source: ModelSource, what: str = "model", *, revision: str | None = None, unpacks: str = "", trusted: bool = False
) -> Iterator[None]:
    """Vet a model; inside, whatever goes wrong in a library becomes one line that names it."""
    where = "from the hub" if source.kind == "hub" else f"from {source.location}"
    try:
        with extras_named(needed_for=f"the {what} {source.name!r}"):
            vet(source, revision, unpacks=unpacks, trusted=trusted)
            yield
    except QuantDriftError:
        raise
    except BaseException as error:  # a dozen libraries read models, each with its own errors
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # Rust's
            raise
        raise UnsupportedError(
            f"the {what} {source.name!r} ({source.canonical}) cannot be loaded {where}: "
            f"{one_line(error).rstrip('.')}{source.otherwise}"
        ) from error


def vet(source: ModelSource, revision: str | None = None, *, unpacks: str = "", trusted: bool = False) -> None:
    """Refuse a model that could run code, or whose files are damaged; nothing is loaded.

    Of a hub model its settings alone are looked at, as far as the hub can be reached.
    """
    on_hub = source.kind == "hub"

    def read(file: str) -> dict[str, Any]:
        with suppress(UnsupportedError) if on_hub else nullcontext():
            return model_json(source, file, revision)
        return {}

    parts = [""]
    modules = read("modules.json").get("", [])
    for module in modules if isinstance(modules, list) else []:
        said = module if isinstance(module, dict) else {}
        kind, path = said.get("type"), str(said.get("path") or "")
        if not trusted and isinstance(kind, str) and not _MODULE.fullmatch(kind):
            raise UnsupportedError(
                f"modules.json of {source.name} names the class {shown(kind)}, which is none of "
                "sentence-transformers; code that comes with a model is not run"
            )
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise UnsupportedError(
                f"modules.json of {source.name} leads out of its folder, to {shown(path)}; expected folders in it"
            )
        parts.append(path)
    parts = list(dict.fromkeys(parts))
    for part in parts[:2] if on_hub else parts:  # the transformer lies in the first module's
        config = str(PurePosixPath(part, "config.json"))
        _check(read(config), f"{config} of {source.name}", unpacks)
        if not on_hub:
            read(str(PurePosixPath(part, "tokenizer_config.json")))
            for file in weight_files(Path(source.location, part), "model.safetensors"):
                read_head(file)


def vet_settings(settings: Mapping[str, Any], where: str) -> None:
    """Refuse settings that make a library run code that comes with a model, or build without end."""
    _check(settings, where, "")


def refuse_small_vocabulary(module: nn.Module, name: str, tokenizer: Any = None) -> None:
    """Refuse a model whose tokenizer files are missing: transformers makes one up of a few tokens."""
    found = getattr(module, "tokenizer", None) if tokenizer is None else tokenizer
    found = getattr(found, "tokenizer", found)  # of a processor for texts and images
    if not isinstance(found, Sized):
        return
    rows = 0
    for part in module.modules():
        with suppress(NotImplementedError, AttributeError):
            rows = max(rows, part.get_input_embeddings().num_embeddings)  # type: ignore[operator]
    if len(found) - len(getattr(found, "all_special_ids", ())) <= _WORDS or rows > _ROWS * len(found):
        raise UnsupportedError(
            f"the tokenizer of {name} knows {len(found):,} tokens, and its embedding table has {rows:,} rows: "
            "tokenizer files are missing in its folder. Copy them there (tokenizer.json, tokenizer_config.json) from "
            "the model that it was made of"
        )


def _check(settings: Mapping[str, Any], where: str, unpacks: str) -> None:
    """Refuse settings, at any depth, that make a library run code or build without end."""
    method = settings.get("quant_method")
    if method == "hqq" != unpacks:
        raise UnsupportedError(
            f"{where} says that it is quantized by hqq, which evaluates what it reads as Python; "
            'expected its quantization_config at the top, and quantdrift run "REFERENCE vs NAME"'
        )
    for key, value in settings.items():
        if _KERNEL.fullmatch(key) and "/" in str(value):
            raise UnsupportedError(
                f"{where} asks for {key} {shown(str(value))}, code from the hub; code that comes "
                "with a model is not run. Take that setting out"
            )
        if key == "trust_remote_code" and value:
            raise UnsupportedError(f"{where} asks for {key}; code that comes with a model is not run. Take it out")
        numbers = value if isinstance(value, list) else [value]
        for pattern, most in _MOST.items():
            largest = max((n for n in numbers if isinstance(n, int)), default=0)
            if pattern.fullmatch(key) and largest > most:
                raise UnsupportedError(f"{where} asks for {largest:,} as {key}; at most {most:,}")
        top = key in {"quantization_config", "compression_config"}
        for inner in numbers:
            if isinstance(inner, Mapping):
                _check(inner, where, unpacks if top else "")


def one_line(error: BaseException) -> str:
    """What a library said, without the lines that follow the first."""
    if isinstance(error, pickle.UnpicklingError):
        return (
            "its weights are pickled Python, which could run anything; expected safetensors, as "
            "save_pretrained of transformers writes them"
        )
    return shorten(clean(f"{type(error).__name__}: {first_line(error)}"), _MESSAGE)
