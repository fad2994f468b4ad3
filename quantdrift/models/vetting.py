"""Checks of what the files of a model say, before a library reads them.

A checkpoint may come from anybody. The libraries that read one obey its files: they run code that these name, open
other files, and make a model as large as config.json says. So every key that reaches a loader stands in a schema, and
any other key is refused.
"""

import re
from collections.abc import Callable, Mapping, Set
from contextlib import nullcontext, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from quantdrift.base.display import shown
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.records import entries
from quantdrift.models.endless import PATTERNS, check_patterns, check_rules
from quantdrift.models.files.kinds import architectures, has_modules, model_json, refuse_language_model
from quantdrift.models.files.named import ADAPTER_FILE, ModelSource, refuse_adapter
from quantdrift.models.files.tensors import WEIGHTS, read_head, weight_files
from quantdrift.models.schemas import CONFIG, MODELS, MODULES, TRANSFORMER, check_settings
from quantdrift.spec.names import READ_AS

TRANSFORMER_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Files with the settings of a transformer; sentence-transformers takes the first that exists."""
MODEL_FILE = "config_sentence_transformers.json"
_SETTING = ("tokenizer", "processor", "preprocessor", "video_preprocessor", "generation", "quantize")
SETTINGS_FILES = ("config.json", *(f"{name}_config.json" for name in _SETTING))
"""Files that the loaders of transformers read as settings."""
PYLATE = {"pylate.models.Dense.Dense": "Dense"}
"""Classes of PyLate that sentence-transformers replaces by its own; no code of PyLate runs."""
_MODULE = re.compile(r"sentence_transformers(?:\.\w+)*\.([A-Z]\w*)")
_KERNEL = re.compile(r"_?(attn|experts)_implementation(_internal)?")
_MOST = {
    re.compile(r"\w*(layers?|blocks|depths?|block_count)"): 512,
    re.compile(r"\w*experts|\w*expert_count"): 10_000,
    re.compile(r"num_(labels|classes)"): 1_000_000,
    re.compile("chunk_size_feed_forward"): 1,
}
"""Limits of numbers in a config.json by which a library builds objects before it reads weights. Chunks of more than one
would have to divide the length of every batch."""
_USUAL = frozenset({"SentenceTransformer", "CrossEncoder"})
SAVED_AS: Mapping[str, Set[str]] = {
    "SentenceTransformer": _USUAL,
    "CrossEncoder": _USUAL,
    "SparseEncoder": {"SparseEncoder"},
    "MultiVectorEncoder": {"MultiVectorEncoder", "ColBERT"},  # the second is PyLate's name
}
"""Class of sentence-transformers to the classes that files may name; any other would be converted on loading."""
MARKS: Mapping[str, Set[str]] = {
    "SparseEncoder": {"SpladePooling", "SparseAutoEncoder"},
    "MultiVectorEncoder": {"MultiVectorMask", "HierarchicalTokenPooling"},
    "CrossEncoder": {"LogitScore"},
}
"""Modules that belong to one class of sentence-transformers alone."""
_COLBERT = ("ColBERT", "ColPali", "ColQwen", "ForRetrieval", "Splade", "SPLADE")
_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")
_WORDS = "ForMaskedLM"
_POOLING_KEYS = ("pooling", "pooling_type", "pooling_mode", "pooling_strategy", "pooler_type")
_Read = Callable[[str | PurePosixPath], dict[str, Any]]


def vet(
    source: ModelSource,
    revision: str | None = None,
    *,
    trusted: bool = False,
    kind: str = "SentenceTransformer",
    hqq: bool = False,
) -> None:
    """Refuse a model that could run code, that is another kind of model, or whose files are damaged; nothing is loaded.

    `kind` is the class of sentence-transformers that it is loaded as. For a model on the hub only the settings are
    checked, and only those that the hub gives. `trusted` allows code of the model to run; `hqq` says that its weights
    are unpacked here, by no library.
    """
    on_hub = source.kind == "hub"

    def read(file: str | PurePosixPath) -> dict[str, Any]:
        with suppress(UnsupportedError) if on_hub else nullcontext():
            settings = model_json(source, str(file), revision)
            return {key: value for key, value in settings.items() if not (hqq and key == "quantization_config")}
        return {}

    refuse_other_kinds(read(MODEL_FILE).get("model_type"), source.name, kind)
    parts = _modules(read("modules.json").get("", []), source, trusted=trusted)
    if not trusted:
        check_settings(read(MODEL_FILE), MODELS[kind], f"{MODEL_FILE} of {source.name}")
        _refuse_mixed({module for _, module in parts[1:]}, source.name, kind)
    for part, module in parts:
        if read(PurePosixPath(part, ADAPTER_FILE)):
            refuse_adapter(source.name)
        if (listed := MODULES.get(module)) is None:
            _check_transformer(part, source, read, trusted=trusted)
        elif not trusted:
            path = PurePosixPath(part, "config.json")
            settings = read(path)
            if not part:  # where a module without settings of its own lies, these are the transformer's
                settings = {key: value for key, value in settings.items() if key in listed.model_fields}
            check_settings(settings, listed, f"{path} of {source.name}")
        if not on_hub:
            for file in weight_files(Path(source.location, part), WEIGHTS):
                read_head(file)


def refuse_other_kinds(said: object, name: str, kind: str = "SentenceTransformer") -> None:
    """Refuse a model of sentence-transformers that loading would convert into another class."""
    if said is not None and said not in SAVED_AS[kind]:
        raise UnsupportedError(
            f"{name} is a {shown(str(said))}, and a {kind} made of it would be another model; expected "
            f"{' or '.join(sorted(SAVED_AS[kind]))} as its model_type"
        )


def _refuse_mixed(modules: Set[str], name: str, kind: str) -> None:
    """Refuse modules of one class of sentence-transformers in a model that is loaded as another."""
    others = frozenset().union(*(marks for of, marks in MARKS.items() if of != kind))
    if kind == "MultiVectorEncoder":
        others |= {"Pooling"}  # which leaves one vector
    lacking = modules and kind == "SparseEncoder" and not modules & MARKS[kind]
    if lacking or modules & others:
        wanted = f"one of {', '.join(sorted(MARKS[kind]))}" if lacking else f"none of {', '.join(sorted(others))}"
        raise UnsupportedError(
            f"modules.json of {name} lists {', '.join(sorted(modules))}, and {MODEL_FILE} has a {kind} made of them, "
            f"which would be another model; expected {wanted}"
        )


def refuse_unsaid_pooling(source: ModelSource, revision: str | None = None) -> bool:
    """Say whether a model leaves open how its tokens become an embedding; refuse it if its files contradict a guess."""
    if has_modules(source, revision):
        if source.read_as:
            name = source.name.removeprefix(source.read_as)
            raise UnsupportedError(f"{name} has a modules.json, which says how it is read; leave {source.read_as} out")
        return False
    refuse_language_model(source, revision)
    named = architectures(source, revision)
    weighing = [name for name in named if name.endswith(_WORDS)]
    if other := next((name for name in named if any(part in name for part in (*_COLBERT, *_HEADS))), None):
        raise UnsupportedError(
            f"{source.name} is a {shown(other)}, and has no modules.json that makes an embedding model of it; expected "
            "a folder that SentenceTransformer.save_pretrained wrote"
        )
    if weighing and not source.read_as:
        ways = " or ".join(f"{way}{source.name} ({how})" for way, how in READ_AS.items())
        raise UnsupportedError(
            f"{source.name} is a {shown(weighing[0])}, whose head gives every term of a vocabulary a weight, and has "
            f"no modules.json, which says whether that head is used; expected {ways}"
        )
    if source.read_as == "sparse:" and not weighing:
        raise UnsupportedError(
            f"{source.name} has no head that gives terms weights, its config.json says; leave sparse: out"
        )
    config = model_json(source, "config.json", revision)
    stated = [file for file in (MODEL_FILE, "1_Pooling/config.json") if model_json(source, file, revision)]
    stated += [f"config.json ({key} {shown(str(config[key]))})" for key in _POOLING_KEYS if config.get(key)]
    if stated:
        raise UnsupportedError(
            f"{source.name} has no modules.json, which says how tokens become an embedding, and its {stated[0]} says "
            "that this is not left open; expected modules.json beside it, as SentenceTransformer.save_pretrained "
            "writes it"
        )
    return True


def _modules(listed: object, source: ModelSource, *, trusted: bool) -> list[tuple[str, str]]:
    """Return folder and class of every module, after the model's own folder, which counts as a transformer's."""
    parts = [("", "Transformer")]
    for module in listed if isinstance(listed, list) else []:
        said = module if isinstance(module, dict) else {}
        kind, path = str(said.get("type")), str(said.get("path") or "")
        name = match[1] if (match := _MODULE.fullmatch(kind)) else PYLATE.get(kind, "")
        if name not in MODULES and not trusted:
            raise UnsupportedError(
                f"modules.json of {source.name} names the class {shown(kind)}, which is not measured, and code that "
                f"comes with a model is not run; expected {', '.join(MODULES)} of sentence-transformers"
            )
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise UnsupportedError(
                f"modules.json of {source.name} leads out of its folder, to {shown(path)}; expected folders in it"
            )
        parts.append((path, name))
    return list(dict.fromkeys(parts))


def _check_transformer(part: str, source: ModelSource, read: _Read, *, trusted: bool) -> None:
    """Check all files of a folder that transformers reads settings from."""
    rules = PurePosixPath(part, "tokenizer.json")
    check_rules(read(rules), f"{rules} of {source.name}")
    for file in (*SETTINGS_FILES, *TRANSFORMER_FILES):
        path = PurePosixPath(part, file)
        settings, where = read(path), f"{path} of {source.name}"
        if not trusted:
            check_settings(settings, TRANSFORMER if file in TRANSFORMER_FILES else CONFIG, where)
        if not trusted or file in SETTINGS_FILES:
            vet_settings(settings, where)


def vet_settings(settings: Mapping[str, Any], where: str) -> None:
    """Refuse settings, at any depth, that make a library run code or build objects without end."""
    for key, value in entries(settings):
        if key == "quant_method" and value == "hqq":
            raise UnsupportedError(
                f"{where} names hqq, whose reader evaluates text of the file as Python; an embedding model of it can "
                'be the candidate, which is unpacked here: quantdrift run "REFERENCE vs CHECKPOINT"'
            )
        if (_KERNEL.fullmatch(key) and "/" in str(value)) or (key == "trust_remote_code" and value):
            raise UnsupportedError(
                f"{where} asks for {key} {shown(str(value))}, which runs code from elsewhere; code that comes with a "
                "model is not run. Take that setting out"
            )
        if key in PATTERNS:
            check_patterns(value, where)
        for name, most in _MOST.items():
            if isinstance(value, int) and value > most and name.fullmatch(key):
                raise UnsupportedError(f"{where} asks for {value:,} as {key}; at most {most:,}")
