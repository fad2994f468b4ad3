"""Schemas of the files of a model: the keys that each may have, with types and ranges.

Libraries act on keys that nobody expects in a file, replace a value that they do not know by another, and build objects
as large as a number says. So a key that is in no schema is refused, and so is a value of another type or out of range.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, create_model

from quantdrift.base.display import clean, shown
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.records import Some, problem_of
from quantdrift.base.text import some

_TOKENIZER = re.compile(r"\w+(Tokenizer|Backend)(Fast)?")


def _tokenizer(name: str) -> str:
    """Refuse a tokenizer that transformers does not know, as it would use one with other rules."""
    from transformers.models.auto import tokenization_auto  # noqa: PLC0415 -- takes seconds to import

    if not _TOKENIZER.fullmatch(name) or tokenization_auto.tokenizer_class_from_name(name) is None:
        raise ValueError(f"expected a class of transformers, such as BertTokenizer; got {shown(name)}")
    return name


Prompt = Annotated[str, StringConstraints(max_length=1 << 16)]
Size = Annotated[int, Field(ge=0, le=1 << 13)]
Length = Annotated[int, Field(ge=1, le=1 << 24)]
Activation = Annotated[
    str,
    StringConstraints(
        pattern=r"^torch\.nn\.((modules\.linear\.)?Identity|(modules\.activation\.)?"
        "(Tanh|ReLU6?|GELU|Sigmoid|SiLU|Softmax|LeakyReLU|ELU|Mish|Hardtanh|LogSigmoid))$"
    ),
]
"""A listed class, as sentence-transformers would call any name below torch."""
Feature = Literal["sentence_embedding", "token_embeddings", "causal_logits", "scores"]
"""The entry that a module reads or writes; no module would look for another name."""


class Listed(BaseModel):
    """Settings in which every key has to be listed."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class Open(BaseModel):
    """Settings in which some keys have a type or a range, and others are free."""

    model_config = ConfigDict(strict=True, frozen=True)


class Versioned(Listed):
    """Settings that name the versions of the libraries that wrote them."""

    version: Any = Field(None, alias="__version__")


def _schema(keys: str = "", base: type[BaseModel] = Listed, **typed: Any) -> type[BaseModel]:
    """Make a schema of keys that libraries check themselves and keys with types; each may be missing or null."""
    fields: dict[str, Any] = dict.fromkeys(keys.split(), (Any, None))
    fields |= {key: (kind | None, None) for key, kind in typed.items()}
    return create_model("Settings", __base__=base, __module__=__name__, **fields)


# --- the model as a whole, config_sentence_transformers.json --------------------------------------

_MODEL = _schema(
    "model_type requirements keep_in_fp32_modules",
    base=Versioned,
    activation_fn=Activation,
    prompts=dict[str, Prompt | None],
    default_prompt_name=str,
    truncate_dim=Some,
    similarity_fn_name=Literal["cosine", "dot", "euclidean", "manhattan"],
)
_ROWS = _schema(
    "do_query_expansion query_expansion attend_to_expansion_tokens skiplist_words",
    base=_MODEL,
    query_prefix=Prompt,
    document_prefix=Prompt,
    query_length=Some,
    document_length=Some,
    max_active_dims=Some,
)
_MAX_SIM = Literal["maxsim", "meanmaxsim", "MaxSim", "cosine", "dot"]
"""Two of these are PyLate's names for maxsim."""
MODELS: Mapping[str, type[BaseModel]] = {
    "SentenceTransformer": _MODEL,
    "CrossEncoder": _MODEL,
    "SparseEncoder": _ROWS,
    "MultiVectorEncoder": _schema(base=_ROWS, similarity_fn_name=_MAX_SIM),
}
"""Schemas by class of sentence-transformers, which replaces a similarity that it does not know by its own."""

# --- a transformer --------------------------------------------------------------------------------

_MODEL_ARGUMENTS = _schema("attn_implementation dtype torch_dtype trust_remote_code")  # the dtype is set by us
_CONFIG_ARGUMENTS = _schema("use_cache is_causal is_decoder attn_implementation trust_remote_code")
_TOKENIZER_ARGUMENTS = _schema(
    "model_max_length padding_side truncation_side use_fast do_lower_case add_eos_token add_bos_token "
    "clean_up_tokenization_spaces min_pixels max_pixels trust_remote_code"
)
_MODALITY: Any = _schema(base=Open, method=Annotated[str, StringConstraints(pattern="^(forward|get_[a-z]+_features)$")])
_PROCESSING: Any = _schema(base=Open, max_length=Length, pad_to_multiple_of=Size)
TRANSFORMER = _schema(
    max_seq_length=Some,
    do_lower_case=bool,
    unpad_inputs=bool,
    transformer_task=Literal[
        "feature-extraction", "sequence-classification", "text-generation", "any-to-any", "fill-mask"
    ],
    module_output_name=Feature,
    modality_config=dict[str, _MODALITY],
    processing_kwargs=dict[str, _PROCESSING],
    model_args=_MODEL_ARGUMENTS,
    model_kwargs=_MODEL_ARGUMENTS,
    config_args=_CONFIG_ARGUMENTS,
    config_kwargs=_CONFIG_ARGUMENTS,
    tokenizer_args=_TOKENIZER_ARGUMENTS,
    processor_kwargs=_TOKENIZER_ARGUMENTS,
)
"""Settings of sentence-transformers for a transformer; arguments for transformers have an old and a new name."""
CONFIG = _schema(
    base=Open,
    tokenizer_class=Annotated[str, AfterValidator(_tokenizer)],
    sbert_ce_default_activation_function=Activation,
    sentence_transformers=_schema(base=Open, activation_fn=Activation),
    transformers_weights=Literal[None],  # by these from_pretrained reads other files, and fuses layers
    fusion_config=Literal[None],
)
"""Settings of transformers for it."""

# --- other modules --------------------------------------------------------------------------------

_Width = Annotated[int, Field(ge=1, le=1 << 14)]
"""A width by which a matrix is made before its file is read: at most 1 GiB."""
_DIMENSIONS = "embedding_dimension word_embedding_dimension"
MODULES: Mapping[str, type[BaseModel] | None] = {
    "Transformer": None,
    "CLIPModel": None,
    "StaticEmbedding": None,
    "MLMTransformer": None,
    "Pooling": _schema(
        f"{_DIMENSIONS} pooling_mode include_prompt pooling_mode_cls_token pooling_mode_mean_tokens "
        "pooling_mode_max_tokens pooling_mode_mean_sqrt_len_tokens pooling_mode_weightedmean_tokens "
        "pooling_mode_lasttoken"
    ),
    "Dense": _schema(
        "bias use_residual",
        in_features=_Width,
        out_features=_Width,
        activation_function=Activation,
        module_input_name=Feature,
        module_output_name=Feature,
    ),
    "Normalize": _schema(module_input_name=Feature, module_output_name=Feature),
    "LayerNorm": _schema(dimension=_Width),
    "Dropout": _schema("dropout"),
    "WeightedLayerPooling": _schema(f"{_DIMENSIONS} layer_start num_hidden_layers layer_weights"),
    "MultiVectorMask": _schema("skiplist_words skiplist_tasks keep_only_token_ids"),
    "HierarchicalTokenPooling": _schema("pool_factor num_protected_tokens normalize_embeddings tasks"),
    "SpladePooling": _schema(f"{_DIMENSIONS} pooling_strategy activation_function"),
    "SparseAutoEncoder": _schema("k k_aux normalize dead_threshold", input_dim=_Width, hidden_dim=_Width),
    "LogitScore": _schema("true_token_id false_token_id", module_input_name=Feature),
}
"""Modules of sentence-transformers that may be loaded, with their settings; None if transformers reads these."""


def check_settings(
    settings: Mapping[str, Any], kind: type[BaseModel], where: str, do: str = "Correct it, or take it out"
) -> Any:
    """Read settings by their schema.

    Raises:
        UnsupportedError: a key is not listed, or a value is of another type or out of range.
    """
    try:
        return kind.model_validate(settings)
    except ValidationError as error:
        problems = error.errors()
        others = [".".join(map(str, problem["loc"])) for problem in problems if problem["type"] == "extra_forbidden"]
        if others:
            raise UnsupportedError(
                f"{where} sets {some(map(shown, others))}, which no file of a model decides here: it may change how "
                f"weights are read, or what is computed. {do}"
            ) from error
        raise UnsupportedError(f"{where} cannot be used: {clean(problem_of(error))}. {do}") from error
