"""Checks of what the files of a model say, before a library reads them.

A checkpoint may come from anybody. The libraries that read one do what its files say: they run code that these name,
open other files, and make a model as large as config.json asks for. So every key that reaches a loader stands on a
list here; what is on none is refused.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from contextlib import nullcontext, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from quantdrift.base.display import shown
from quantdrift.base.errors import UnsupportedError
from quantdrift.checkpoints.classifier_config import model_json, refuse_language_model
from quantdrift.checkpoints.named import READ_AS, ModelSource, resolve
from quantdrift.engine.encoders.adapters import ADAPTER_FILE, base_of
from quantdrift.engine.encoders.patterns import PATTERNS, check_patterns
from quantdrift.engine.encoders.ranges import Model, Transformer, check_ranges, check_rules
from quantdrift.engine.encoders.stored import WEIGHTS, read_head, weight_files

TRANSFORMER_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Where sentence-transformers looks for the settings of a transformer, the first that is there."""
MODEL_FILE = "config_sentence_transformers.json"
SETTINGS_FILES = (
    "config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "generation_config.json",
    "quantize_config.json",
)
"""Files of transformers that its loaders read as settings."""

CONFIG_ACTS = frozenset({"transformers_weights", "fusion_config"})
"""Entries of a config.json that from_pretrained of transformers acts on by itself: other files, other layers."""


def _keys(names: str) -> frozenset[str]:
    return frozenset(names.split())


MODEL_KEYS = _keys(
    "__version__ model_type prompts default_prompt_name similarity_fn_name truncate_dim activation_fn "
    "keep_in_fp32_modules requirements"
)
TRANSFORMER_KEYS = _keys(
    "max_seq_length do_lower_case transformer_task modality_config module_output_name unpad_inputs processing_kwargs"
)
ARGUMENT_KEYS: Mapping[str, frozenset[str]] = {
    "model_args": _keys("attn_implementation dtype torch_dtype trust_remote_code"),
    "tokenizer_args": _keys(
        "model_max_length padding_side truncation_side use_fast do_lower_case add_eos_token add_bos_token "
        "clean_up_tokenization_spaces min_pixels max_pixels trust_remote_code"
    ),
    "config_args": _keys("use_cache is_causal is_decoder attn_implementation trust_remote_code"),
}
"""Arguments that a transformer's settings may hand on to transformers; the type that weights have is set by us."""
NEW_NAMES = {"model_args": "model_kwargs", "tokenizer_args": "processor_kwargs", "config_args": "config_kwargs"}
MODULE_KEYS: Mapping[str, frozenset[str] | None] = {
    "Transformer": None,
    "CLIPModel": None,
    "StaticEmbedding": None,
    "Pooling": _keys(
        "embedding_dimension word_embedding_dimension pooling_mode include_prompt pooling_mode_cls_token "
        "pooling_mode_mean_tokens pooling_mode_max_tokens pooling_mode_mean_sqrt_len_tokens "
        "pooling_mode_weightedmean_tokens pooling_mode_lasttoken"
    ),
    "Dense": _keys(
        "in_features out_features bias activation_function module_input_name module_output_name use_residual"
    ),
    "Normalize": frozenset({"module_input_name", "module_output_name"}),
    "LayerNorm": frozenset({"dimension"}),
    "Dropout": frozenset({"dropout"}),
    "WeightedLayerPooling": _keys(
        "embedding_dimension word_embedding_dimension layer_start num_hidden_layers layer_weights"
    ),
    "MultiVectorMask": _keys("skiplist_words skiplist_tasks keep_only_token_ids"),
    "HierarchicalTokenPooling": _keys("pool_factor num_protected_tokens normalize_embeddings tasks"),
    "MLMTransformer": None,
    "SpladePooling": _keys("pooling_strategy activation_function embedding_dimension word_embedding_dimension"),
    "SparseAutoEncoder": _keys("input_dim hidden_dim k k_aux normalize dead_threshold"),
    "LogitScore": frozenset({"true_token_id", "false_token_id", "module_input_name"}),
}
"""Modules of sentence-transformers that are loaded, and what their config.json may say; None for transformers' own."""
PYLATE = {"pylate.models.Dense.Dense": "Dense"}
"""Classes of PyLate that sentence-transformers takes for its own; no code of PyLate runs."""
ACTIVATIONS = frozenset(
    f"torch.nn.{place}{name}"
    for place, names in {
        "modules.activation.": "Tanh ReLU GELU Sigmoid SiLU Softmax LeakyReLU ELU Mish Hardtanh LogSigmoid ReLU6",
        "modules.linear.": "Identity",
        "": "Tanh ReLU GELU Sigmoid SiLU Softmax LeakyReLU ELU Mish Identity",
    }.items()
    for name in names.split()
)
"""Activations that a file may name; sentence-transformers calls any name below torch."""

_MODULE = re.compile(r"sentence_transformers(?:\.\w+)*\.([A-Z]\w*)")
_KERNEL = re.compile(r"_?(attn|experts)_implementation(_internal)?")
_MOST = {
    re.compile(r"\w*(layers?|blocks|depths?|block_count)"): 512,
    re.compile(r"\w*experts|\w*expert_count"): 10_000,
    re.compile(r"num_(labels|classes)"): 1_000_000,
    re.compile("chunk_size_feed_forward"): 1,
}
"""Numbers of a config.json by which a library builds objects before it looks into a file; chunks have to divide the
length of every batch."""
ROWS: Mapping[str, frozenset[str]] = {
    "MultiVectorEncoder": frozenset({"MultiVectorEncoder", "ColBERT"}),  # the second is PyLate's name
    "SparseEncoder": frozenset({"SparseEncoder"}),
}
"""Classes of sentence-transformers whose outputs are several rows an input, and what their files call them."""
ROW_KEYS = _keys(
    "query_prefix document_prefix query_length document_length do_query_expansion attend_to_expansion_tokens "
    "query_expansion skiplist_words max_active_dims"
)
"""What the files of such models say beside what all do."""
MARKS: Mapping[str, frozenset[str]] = {
    "SparseEncoder": frozenset({"SpladePooling", "SparseAutoEncoder"}),
    "MultiVectorEncoder": frozenset({"MultiVectorMask", "HierarchicalTokenPooling"}),
    "CrossEncoder": frozenset({"LogitScore"}),
}
"""Modules that are of one class of sentence-transformers alone."""
_SIMILARITIES = {"cosine", "dot", "euclidean", "manhattan"}
SIMILARITIES: Mapping[str, Collection[str]] = {
    "SentenceTransformer": _SIMILARITIES,
    "CrossEncoder": _SIMILARITIES,
    "SparseEncoder": _SIMILARITIES,
    "MultiVectorEncoder": {"maxsim", "meanmaxsim", "MaxSim", "cosine", "dot"},  # PyLate's names stand for the first
}
"""Values of similarity_fn_name; for any other sentence-transformers takes its own, and does not say so."""
_FEATURE_KEYS = frozenset({"module_input_name", "module_output_name"})
_FEATURES = ("sentence_embedding", "token_embeddings", "causal_logits", "scores")
"""What a module behind the transformer reads and writes; under another name nothing would look for it."""
_TOKENIZER = re.compile(r"\w+(Tokenizer|Backend)(Fast)?")
_COLBERT = ("ColBERT", "ColPali", "ColQwen", "ForRetrieval", "Splade", "SPLADE")
_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")
_WORDS = "ForMaskedLM"
_POOLING_KEYS = ("pooling", "pooling_type", "pooling_mode", "pooling_strategy", "pooler_type")


def vet(
    source: ModelSource,
    revision: str | None = None,
    *,
    trusted: bool = False,
    kind: str = "SentenceTransformer",
    hqq: bool = False,
) -> None:
    """Refuse a model that could run code, that is another kind of model, or whose files are damaged; nothing is loaded.

    `kind` is the class of sentence-transformers that it is loaded as. Of a hub model its settings alone are looked at,
    as far as the hub can be reached. `trusted` says that code of the model may run, `hqq` that no library unpacks it.
    """
    on_hub = source.kind == "hub"

    def read(file: str | PurePosixPath) -> dict[str, Any]:
        with suppress(UnsupportedError) if on_hub else nullcontext():
            settings = model_json(source, str(file), revision)
            return {key: value for key, value in settings.items() if not (hqq and key == "quantization_config")}
        return {}

    said = read(MODEL_FILE)
    refuse_other_kinds(said.get("model_type"), source.name, kind)
    if not trusted:
        more = ROW_KEYS if kind in ROWS else frozenset()
        _only(said, MODEL_KEYS | more, f"{MODEL_FILE} of {source.name}")
        _check_activation(said.get("activation_fn"), f"{MODEL_FILE} of {source.name}")
        if (similarity := said.get("similarity_fn_name")) not in (None, *SIMILARITIES[kind]):
            raise _not_listed(f"{MODEL_FILE} of {source.name}", "similarity_fn_name", similarity, SIMILARITIES[kind])
    check_ranges(said, Model, f"{MODEL_FILE} of {source.name}")
    parts = _modules(read("modules.json").get("", []), source, trusted=trusted)
    if not trusted:
        _refuse_mixed({module for _, module in parts[1:]}, source.name, kind)
    for part, module in parts:
        if adapter := read(PurePosixPath(part, ADAPTER_FILE)):
            vet_settings(adapter, f"{ADAPTER_FILE} of {source.name}")
            base = resolve(base_of(adapter, f"{ADAPTER_FILE} of {source.name}"))
            if base.kind == "embedded" or model_json(base, ADAPTER_FILE):
                raise UnsupportedError(
                    f"{base.name} is the base of the adapter {source.name}; expected the folder or the name on the hub "
                    "of a model that is no adapter itself"
                )
            if not read("modules.json"):
                raise UnsupportedError(
                    f"{source.name} is an adapter without modules.json, which says how tokens become an embedding; "
                    "expected a folder that SentenceTransformer.save_pretrained wrote, or the merged model"
                )
            vet(base, trusted=trusted)
        _check_part(part, module, source, read, trusted=trusted)
        if not on_hub:
            for file in weight_files(Path(source.location, part), WEIGHTS):
                read_head(file)


def refuse_other_kinds(said: object, name: str, kind: str = "SentenceTransformer") -> None:
    """Refuse a model of sentence-transformers that would be converted into another one when it is loaded."""
    usual = {"SentenceTransformer", "CrossEncoder"}
    if said is not None and said not in ROWS.get(kind, usual):
        raise UnsupportedError(
            f"{name} is a {shown(str(said))}, and a {kind} made of it would be another model; expected "
            f"{' or '.join(sorted(ROWS.get(kind, usual)))} as its model_type"
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


def _not_listed(where: str, key: str, value: object, listed: Iterable[str]) -> UnsupportedError:
    return UnsupportedError(
        f"{where} gives {key} as {shown(str(value))}, and a library that does not know it takes another in silence; "
        f"expected {', '.join(sorted(listed))}"
    )


def refuse_unsaid_pooling(source: ModelSource, revision: str | None = None) -> bool:
    """Whether a model leaves open how its tokens become an embedding; refused where its files speak against a guess."""
    if model_json(source, "modules.json", revision):
        if source.read_as:
            name = source.name.removeprefix(source.read_as)
            raise UnsupportedError(f"{name} has a modules.json, which says how it is read; leave {source.read_as} out")
        return False
    refuse_language_model(source, revision)
    config = model_json(source, "config.json", revision)
    for architecture in map(str, config.get("architectures") or ()):
        if any(part in architecture for part in (*_COLBERT, *_HEADS)):
            raise UnsupportedError(
                f"{source.name} is a {shown(architecture)}, and has no modules.json that makes an embedding model of "
                "it; expected a folder that SentenceTransformer.save_pretrained wrote"
            )
        if architecture.endswith(_WORDS) and not source.read_as:
            ways = " or ".join(f"{way}{source.name} ({how})" for way, how in READ_AS.items())
            raise UnsupportedError(
                f"{source.name} is a {shown(architecture)}, whose head gives every term of a vocabulary a weight, and "
                f"has no modules.json, which says whether that head is used; expected {ways}"
            )
    if source.read_as == "sparse:" and not any(
        str(name).endswith(_WORDS) for name in config.get("architectures") or ()
    ):
        raise UnsupportedError(
            f"{source.name} has no head that gives terms weights, its config.json says; leave sparse: out"
        )
    left = [file for file in (MODEL_FILE, "1_Pooling/config.json") if model_json(source, file, revision)]
    stated = [f"{key} {shown(str(config[key]))}" for key in _POOLING_KEYS if config.get(key)]
    if left or stated:
        raise UnsupportedError(
            f"{source.name} has no modules.json, which says how tokens become an embedding, and its "
            f"{left[0] if left else 'config.json'} says that this is not left open"
            f"{'' if left else ' (' + ', '.join(stated) + ')'}; expected modules.json beside it, as "
            "SentenceTransformer.save_pretrained writes it"
        )
    return True


def _modules(listed: object, source: ModelSource, *, trusted: bool) -> list[tuple[str, str]]:
    """Folder and class of every module, and the folder itself, which is a transformer's where no modules.json is."""
    parts = [("", "Transformer")]
    for module in listed if isinstance(listed, list) else []:
        said = module if isinstance(module, dict) else {}
        kind, path = str(said.get("type")), str(said.get("path") or "")
        name = match[1] if (match := _MODULE.fullmatch(kind)) else PYLATE.get(kind, "")
        if name not in MODULE_KEYS and not trusted:
            what = "a class" if name else "none of sentence-transformers'; code that comes with a model is not run"
            raise UnsupportedError(
                f"modules.json of {source.name} names the class {shown(kind)}, which is {what}"
                f"{' that is not measured; expected ' + ', '.join(MODULE_KEYS) if name else ''}"
            )
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise UnsupportedError(
                f"modules.json of {source.name} leads out of its folder, to {shown(path)}; expected folders in it"
            )
        parts.append((path, name))
    return list(dict.fromkeys(parts))


def _check_part(
    part: str, kind: str, source: ModelSource, read: Callable[..., dict[str, Any]], *, trusted: bool
) -> None:
    """Check the settings of a module; a transformer's are in many files."""
    keys = MODULE_KEYS.get(kind)
    if keys is None:
        check_rules(
            read(PurePosixPath(part, "tokenizer.json")), f"{PurePosixPath(part, 'tokenizer.json')} of {source.name}"
        )
    for file in ("config.json",) if keys is not None else (*SETTINGS_FILES, *TRANSFORMER_FILES):
        path = PurePosixPath(part, file)
        settings, where = read(path), f"{path} of {source.name}"
        if file in TRANSFORMER_FILES:
            check_ranges(settings, Transformer, where)
        if not trusted or file in SETTINGS_FILES:
            vet_settings(settings, where)
        if trusted:
            continue
        _check_tokenizer(settings.get("tokenizer_class"), where)
        if keys is not None:
            _only(settings if part else {}, keys, where)  # one without settings lies in the model's own folder
            for key in _FEATURE_KEYS & settings.keys():
                if settings[key] not in (None, *_FEATURES):
                    raise _not_listed(where, key, settings[key], _FEATURES)
            if kind == "Dense":
                _check_activation(settings.get("activation_function"), where)
        elif file in TRANSFORMER_FILES:
            _check_arguments(settings, where)
        else:
            inner = settings.get("sentence_transformers")
            _check_activation(inner.get("activation_fn") if isinstance(inner, Mapping) else None, where)
            _check_activation(settings.get("sbert_ce_default_activation_function"), where)
            _only(CONFIG_ACTS & settings.keys(), (), where)


def _check_arguments(settings: Mapping[str, Any], where: str) -> None:
    """Refuse settings of a transformer, and arguments in them for its loaders, that are on no list."""
    _only(settings, TRANSFORMER_KEYS | ARGUMENT_KEYS.keys() | set(NEW_NAMES.values()), where)
    for name, allowed in ARGUMENT_KEYS.items():
        for argument in (name, NEW_NAMES[name]):
            given = settings.get(argument) or {}
            if not isinstance(given, Mapping):
                raise UnsupportedError(f"{where} gives {argument} as {shown(str(given))}; expected an object")
            _only(given, allowed, f"{argument} in {where}")


def _only(keys: Iterable[str], allowed: Iterable[str], where: str) -> None:
    """Refuse keys that are on no list."""
    if others := sorted({*keys} - {*allowed, ""}):
        hint = f" (known are {', '.join(sorted(allowed))})" if allowed else ""
        raise UnsupportedError(
            f"{where} sets {', '.join(shown(key) for key in others[:4])}, which no file of a model decides "
            f"here: it may change how weights are read, or what is computed{hint}. Take it out"
        )


def _check_tokenizer(name: object, where: str) -> None:
    """Refuse a tokenizer that transformers does not know: it takes the rules of another."""
    if name is None:
        return
    from transformers.models.auto import tokenization_auto  # noqa: PLC0415 -- takes seconds to import

    known = isinstance(name, str) and _TOKENIZER.fullmatch(name) and tokenization_auto.tokenizer_class_from_name(name)
    if not known:
        raise _not_listed(where, "tokenizer_class", name, {"a class of transformers, such as BertTokenizer"})


def _check_activation(name: object, where: str) -> None:
    """Refuse a name that sentence-transformers would call, or take another for, unless it is an activation."""
    if name is not None and str(name) not in ACTIVATIONS:
        raise UnsupportedError(
            f"{where} names {shown(str(name))} as its activation, which sentence-transformers would call or replace; "
            "expected one of torch.nn, such as torch.nn.modules.activation.Tanh"
        )


def vet_settings(settings: Mapping[str, Any], where: str) -> None:
    """Refuse settings, at any depth, that make a library run code or build without end."""
    if settings.get("quant_method") == "hqq":
        raise UnsupportedError(
            f"{where} names hqq, whose reader evaluates text of the file as Python; an embedding model of it can be "
            'the candidate, which is unpacked here: quantdrift run "REFERENCE vs CHECKPOINT"'
        )
    for key, value in settings.items():
        if _KERNEL.fullmatch(key) and "/" in str(value):
            raise UnsupportedError(
                f"{where} asks for {key} {shown(str(value))}, code from the hub; code that comes "
                "with a model is not run. Take that setting out"
            )
        if key == "trust_remote_code" and value:
            raise UnsupportedError(f"{where} asks for {key}; code that comes with a model is not run. Take it out")
        if key in PATTERNS:
            check_patterns(value, where)
        numbers = value if isinstance(value, list) else [value]
        for name, most in _MOST.items():
            largest = max((n for n in numbers if isinstance(n, int)), default=0)
            if name.fullmatch(key) and largest > most:
                raise UnsupportedError(f"{where} asks for {largest:,} as {key}; at most {most:,}")
        for inner in numbers:
            if isinstance(inner, Mapping):
                vet_settings(inner, where)
