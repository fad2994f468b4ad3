"""The string that names a pair: a model, and a scheme for its candidate.

SPEC    := MODEL "@" SCHEME                  the last "@" splits
SCHEME  := BITS { "-" PART } { "+" OPTION }  parts and options in any order, each at most once
         | "fp" OPTION { OPTION }            weights not quantized; no options of the layers

In place of SCHEME, FILE.json { "-" QUANTIZER } { "+" OPTION } uses the widths that `quantdrift allocate` has stored: it
stands for the scheme in the file, with +allocation=FILE.json.

`MODEL vs MODEL` names a reference and a candidate that is quantized already.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from quantdrift.base.display import clean
from quantdrift.base.errors import QuantDriftError, SpecError, UnknownNameError, UnsupportedError, nearest
from quantdrift.builtin.weights import CHOICE
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.kinds.stage import STAGES, Kind, Option
from quantdrift.scheme import CHECKS, DEFAULT_GROUP_SIZE, DEFAULT_QUANTIZER, FULL, FULL_BITS, Scheme, error_at
from quantdrift.spec.names import short_name

_ACTIVATION = ("activation_error", "activation_salience", "activation_norm")
CRITERIA = ("gap", "gap_exact", "reconstruction", "sqnr", *_ACTIVATION, "depth", "random")
# --- the grammar ----------------------------------------------------------------------------------

_WEIGHT = r"[2-7](?:\.[0-9]+)?|8(?:\.0+)?|16(?:\.0+)?(?=A)"
_BITS = re.compile(rf"W({_WEIGHT})(?:A([4-8]))?")
_USUAL = re.compile(r"(?:int|i?q|w)?([2-8])(?:[-_]?bits?|_\w+|a16)?", re.IGNORECASE)
Dtype = Literal["float32", "bfloat16", "float16"]
"""The possible number types of a model at full precision."""
DTYPES: Mapping[str, Dtype] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""The number types by short name, as in +dtype=."""


def _value(alone: str, word: str) -> str:
    return word.partition("=")[2] or alone


@cache
def known_options() -> Mapping[str, Option]:
    """Every option by key: the shared ones and those of stages."""
    shared = {
        "calib": Option(
            pattern=r"[1-9][0-9]{0,8}|.+\.(txt|jsonl)",
            values='a whole number, 1 or more, or a .txt file (one text a line) or .jsonl file (objects with a "text")',
        ),
        "head": Option(values="the path of the module that is the classification head, or none"),
        "layers": Option(pattern="linear", values="linear: weights of nn.Linear modules alone"),
        "seed": Option(pattern="[0-9]{1,18}", values="a whole number, 0 or more"),
    }
    staged = {key: option for stage in STAGES.values() for key, option in stage.options.items()}
    return dict(sorted({**shared, **staged}.items()))


@cache
def _parts() -> Mapping[str, tuple[str, str, Callable[[str], Any]]]:
    """The fields that parts and options set, each with its sign, its pattern, and a function from spelling to value."""
    return {
        "granularity": ("-", "channel|g[1-9][0-9]{0,8}", lambda word: None if word == "channel" else int(word[1:])),
        "quantizer": ("-", "|".join(QUANTIZERS), str),
        "query": ("+", "query", bool),
        "criterion": ("+", "|".join(CRITERIA), str),
        **{
            key: (
                "+",
                f"{key}=({option.pattern})|{key if option.bare_value else '(?!)'}",
                partial(_value, option.bare_value),
            )
            for key, option in known_options().items()
        },
    }


_CONTROL = r"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"  # line ends, and code points that UTF-8 cannot encode
_VERSUS = re.compile(r"(?:^|\s+)vs(?:\s+|$)")
_NOT_IN_MODEL = re.compile(rf"{_VERSUS.pattern}|[{_CONTROL}]+|^\s+|(?<!\s)\s+\Z")
_NOT_IN_SCHEME = re.compile(rf"[\s{_CONTROL}]+|@")
_SPEC_LIKE = "MODEL@SCHEME, e.g. minilm@W4-rtn"
_VERSUS_LIKE = "MODEL vs MODEL, e.g. minilm vs ./minilm-gptq"
_STORED = re.compile(r"(?P<file>[^+=]+\.json)(?P<rest>(?:-[^+]*)?(?:\+.*)?)")


def _stripped(text: str) -> tuple[int, int]:
    """The start and end of the text without the whitespace around it."""
    end = len(text.rstrip())
    return min(len(text) - len(text.lstrip()), end), end


def _check_model(text: str, start: int, end: int, what: str, like: str) -> None:
    if start >= end:
        raise error_at(text, start, start, f"unknown {what}", like)
    if bad := _NOT_IN_MODEL.search(text[start:end]):
        expected = f"one {what} on one line, without spaces at its ends; only run takes two: {_VERSUS_LIKE}"
        raise error_at(text, start + bad.start(), start + bad.end(), "unexpected", expected)


def _split(text: str, start: int, end: int) -> int:
    """Find the "@" of a spec, and check the model before it."""
    at = text.rfind("@", start, end)
    if is_endpoint(text[start:end]):
        name = text[start : end if at < 0 else at]
        expected = f'no scheme and two models, as a server quantizes its own: quantdrift run "REFERENCE vs {name}"'
        raise error_at(text, start, end, "unexpected", expected)
    if at < 0:
        raise error_at(text, end, end, "unknown '@'", _SPEC_LIKE)
    _check_model(text, start, at, "model", _SPEC_LIKE)
    return at


def _read_scheme(text: str, start: int, end: int) -> dict[str, Any]:
    """Parse text[start:end] into the fields of a Scheme."""
    if bad := _NOT_IN_SCHEME.search(text, start, end):
        raise error_at(text, *bad.span(), "unexpected", "a scheme without spaces, control characters and '@'")
    head, *options = text[start:end].split("+")  # first, as a value may hold "-"
    written, *parts = head.split("-")
    bits = _BITS.fullmatch("W16A8" if written == FULL else written)
    if bits is None:
        usual = rf"W?((?:{_WEIGHT})(?:A[4-8])?)(?:_?(channel|g[1-9][0-9]*|{'|'.join(QUANTIZERS)}))?"
        like = re.fullmatch(usual, written, re.IGNORECASE)
        meant = "" if like is None else f"W{like[1].upper()}" + (f"-{like[2].lower()}" if like[2] else "")
        meant = FULL if written.lower() in {FULL, "fp16", "fp32"} else meant or _usual(written)
        expected = (
            "W and 2 to 8 bits, then A and 4 to 8 where activations are quantized: W4, W3.5, W4A8 or W16A8; or fp, "
            "which leaves both alone: fp+emb=int8"
        )
        raise error_at(text, start, start + len(written), "unknown bits", expected, meant=meant)
    values: dict[str, Any] = {}
    where: dict[str, tuple[int, int]] = {}
    at = start + len(written)
    for sign, word in [*(("-", part) for part in parts), *(("+", option) for option in options)]:
        what, value = _read_word(text, at + 1, sign, word)
        if what in values:
            raise error_at(text, at + 1, at + 1 + len(word), f"second {what}", f"at most one {what}")
        values[what], where[what] = value, (at + 1, at + 1 + len(word))
        at += 1 + len(word)
    if written == FULL:
        _check_full(text, start, end, values)
        return {"weight_bits": float(FULL_BITS), "activation_bits": None, "options": _options_of(values)}
    if "act" in values and bits[2] is None:
        option = start + text[start:end].index("+act=") + 1
        expected = f"activation bits, 4 to 8, before it: W{bits[1]}A8+act={values['act']}; or leave it out"
        raise error_at(text, option, option + len(f"act={values['act']}"), "no activations for", expected)
    if not float(bits[1]).is_integer() and "criterion" not in values:
        low, width = int(float(bits[1])), f"W{bits[1]}"
        expected = f"a criterion that says which layers get {low} and which {low + 1} bits, e.g. {width}+gap"
        raise error_at(text, start, start + len(width), "no criterion for the width", expected)
    quantizer = values.get("quantizer", DEFAULT_QUANTIZER)
    inputs, groups = int(bits[2]) if bits[2] else None, QUANTIZERS[quantizer].groups
    if groups:
        where["weights"] = where["inputs"] = start, start + len(written)
        _check_format(text, quantizer, {"weights": float(bits[1]), "inputs": inputs, **values}, where)
    return {
        "weight_bits": float(bits[1]),
        "activation_bits": inputs,
        "group_size": values.get("granularity", groups[0] if groups else DEFAULT_GROUP_SIZE),
        "quantizer": quantizer,
        "query_only": values.get("query", False),
        "criterion": values.get("criterion"),
        "options": _options_of(values),
    }


def _options_of(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    default = ("act", QUANTIZERS[values.get("quantizer", DEFAULT_QUANTIZER)].ranges[0])
    return tuple((key, values[key]) for key in known_options() if key in values and (key, values[key]) != default)


def is_like_scheme(word: str) -> bool:
    """Whether a word looks like a scheme: of ours, an allocation's file, or a name that other tools use.

    >>> [is_like_scheme(word) for word in ("W99", "int4", "./int4", "minilm")]
    [True, True, False, False]
    """
    return bool(re.match(r"\s*[Ww]\d", word) or ".json" in word or _usual(word.strip()))


def _usual(written: str) -> str:
    """Suggestions for a name of other tools: int8, 4bit, nf4, fp8, q4_k_m; empty if there are none."""
    meant = []
    if usual := _USUAL.fullmatch(written):
        meant += [f"W{usual[1]} (weights)"]
        meant += ["fp+emb=int8 (stored embeddings)"] if usual[1] == "8" else []
    for name, entry in QUANTIZERS.items():
        if written and re.fullmatch(f"{name}|{entry.aliases}", written, re.IGNORECASE):
            width = next(iter(entry.widths), 4)
            meant += [f"W{width}-{name}"]
            meant += [f"W{width}A{entry.input_widths[-1]}-{name} (inputs, too)"] if entry.inputs else []
    if usual and re.match("i?q", written, re.IGNORECASE):
        meant += ["MODEL vs FILE.gguf (a file of llama.cpp)"]
    return " or ".join(meant)


def _check_format(text: str, name: str, values: Mapping[str, Any], where: Mapping[str, tuple[int, int]]) -> None:
    """Refuse settings that a number format does not have: other widths or groups, a choice between widths."""
    entry = QUANTIZERS[name]
    sizes = ["channel" if size is None else f"g{size}" for size in entry.groups]
    has: dict[str, tuple[tuple[Any, ...], str]] = {
        "weights": ((*entry.widths, FULL_BITS), f"W{entry.widths[0]}"),
        "inputs": ((*entry.input_widths, None), " or ".join(f"A{bits}" for bits in entry.input_widths)),
        "granularity": (entry.groups, " or ".join(sizes)),
        "criterion": ((), "none, as it has one width for all layers"),
        "act": (entry.ranges, f"none, as each {entry.ranges[0]} has a scale of its own"),
    }
    for what, (possible, expected) in has.items():
        if what in values and values[what] not in possible:
            raise error_at(text, *where[what], f"unsuitable {what} for {name}", expected)


def _check_full(text: str, start: int, end: int, values: Mapping[str, Any]) -> None:
    """Refuse `fp` with settings that quantize layers, and `fp` alone."""
    beside = [key for stage in STAGES.values() if stage.kind != "layers" for key in sorted(stage.options)]
    if wrong := next((name for name in values if name not in {*beside, "seed"}), None):
        expected = f"nothing that quantizes layers beside fp; {', '.join(f'+{key}=' for key in beside)} and +seed="
        raise error_at(text, start, end, f"{wrong} in", expected)
    if not {*values} & {*beside}:
        expected = "what changes beside the layers' weights, e.g. fp+emb=int8, fp+index=HNSW32 or fp+table=8"
        raise error_at(text, end, end, "unknown option", expected)


def _read_word(text: str, at: int, sign: str, word: str) -> tuple[str, Any]:
    """The field and value that a part ("-") or option ("+") at position `at` sets."""
    for what, (lead, pattern, value_of) in _parts().items():
        if lead == sign and re.fullmatch(pattern, word):
            return what, value_of(word)
    end, key, options = at + len(word), word.partition("=")[0], known_options()
    if sign == "+" and key in options:
        expected = f"{key}= and {options[key].values}"
        raise error_at(text, min(at + len(key) + 1, end), end, f"unusable value of {key}", expected)
    what, known = ("part", ("channel", *QUANTIZERS)) if sign == "-" else ("option", ("query", *CRITERIA, *options))
    expected = (
        f"a granularity (channel, g128, ...) or a quantizer ({', '.join(QUANTIZERS)})"
        if sign == "-"
        else f"query, a criterion ({', '.join(CRITERIA)}) or KEY=VALUE with KEY one of {', '.join(options)}; parts "
        "with '-' come before the first '+'"
    )
    values = _options_by_value() if sign == "+" else {}
    meant = next(iter([value for value in values if value == word] or nearest(key, known) or nearest(word, values)), "")
    raise error_at(text, at, end, f"unknown {what}", expected, meant=" or ".join(values.get(meant, [meant])))


def _options_by_value() -> Mapping[str, list[str]]:
    """The values that options name (HNSW32, int8, nprobe=8), each with the options that take it."""
    options: dict[str, list[str]] = {}
    for key, option in known_options().items():
        named = re.findall(r"[A-Za-z][\w:=]*(?:,\w+)*", option.values)
        for value in dict.fromkeys(part for words in named for part in (words, *words.split(","))):
            if option.pattern != Option().pattern and re.fullmatch(option.pattern, value):
                options.setdefault(value, []).append(f"+{key}={value}")
    return options


def _in_one_form(scheme: Scheme) -> Mapping[str, Any]:
    """The fields of a scheme in canonical form, by parsing its string, which applies every rule of the parser."""
    text = str(scheme)
    read = _read_scheme(text, 0, len(text))
    given = {name: getattr(scheme, name) for name in read}
    given["options"] = _options_of({**dict(scheme.options), "quantizer": scheme.quantizer})
    for name, value in read.items():
        if given[name] != value:
            problem, expected = f"{name} given as {given[name]!r} in", f"{value!r}, as this reads"
            raise error_at(text, 0, len(text), problem, expected)
    return read


CHECKS.append(_in_one_form)


# --- the stages of a scheme -----------------------------------------------------------------------


def stages_of(scheme: Scheme) -> tuple[str, ...]:
    """The stages that change answers, in the order of a deployment.

    >>> stages_of(parse_scheme("W4A8+index=HNSW32"))
    ('weights', 'activations', 'index')
    """
    return tuple(name for name, stage in STAGES.items() if stage.in_waterfall and stage.in_(scheme))


def options_of(scheme: Scheme, *kinds: Kind) -> list[str]:
    """The options in a scheme that belong to stages of these kinds, as "+emb="."""
    keys = {key for stage in STAGES.values() if stage.kind in kinds for key in stage.options}
    return [f"+{key}=" for key, _ in scheme.options if key in keys]


def only(scheme: Scheme, stages: Collection[str]) -> Scheme | None:
    """The scheme with only some of its stages; None if it has none of them.

    >>> str(only(parse_scheme("W4A8+emb=int8+index=HNSW32"), {"activations", "index"}))
    'W16A8-g128-rtn+index=HNSW32'
    """
    kept = [STAGES[name] for name in stages_of(scheme) if name in stages]
    if not kept:
        return None
    others = [stage for stage in STAGES.values() if stage.in_waterfall and stage not in kept]
    layers = any(stage.kind == "layers" for stage in kept)
    changed: dict[str, Any] = {name: value for stage in others for name, value in stage.absent_fields.items()}
    if layers and QUANTIZERS[scheme.quantizer].inputs:  # it also rounds activations, without weights
        changed.pop("quantizer", None), changed.pop("group_size", None)
    dropped = {"calib", "seed", *(key for stage in others for key in stage.options)}
    dropped |= set() if layers else {"head", "layers"}
    changed["query_only"] = scheme.query_only and layers
    part = replace(scheme, **changed, options=_but(scheme, dropped))
    dropped |= {key for stage in STAGES.values() if stage.in_(part) and stage.check(part) for key in stage.options}
    if calibrates(part):
        dropped -= {"calib", "seed"}
    if part.criterion is not None or any(stage.uses_seed for stage in kept):
        dropped -= {"seed"}
    return replace(part, options=_but(scheme, dropped))


def at_width(scheme: Scheme, bits: int) -> Scheme:
    """The scheme with one width for all layers, without criterion and its options."""
    return replace(scheme, weight_bits=float(bits), criterion=None, options=_but(scheme, CHOICE))


def _but(scheme: Scheme, keys: Collection[str]) -> tuple[tuple[str, str], ...]:
    return tuple(option for option in scheme.options if option[0] not in keys)


# --- a model and its scheme -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A model and the scheme of its candidate; its string is canonical, `MODEL@SCHEME`.

    Every spec is valid: `parse(str(spec)) == spec`.

    >>> str(Spec(model="BAAI/bge-m3", scheme=Scheme(weight_bits=8)))
    'BAAI/bge-m3@W8-g128-rtn'

    Attributes:
        model: short name, which gets its usual case; hub id or folder: one line, not empty, no whitespace at its ends.
        scheme: the scheme of the candidate.

    Raises:
        SpecError: the values make no valid spec; `text` is the string they would have.
    """

    model: str
    scheme: Scheme

    def __post_init__(self) -> None:
        _split(str(self), 0, len(str(self)))
        object.__setattr__(self, "model", short_name(self.model))

    def __str__(self) -> str:
        return f"{self.model}@{self.scheme}"


def dtype_named(text: str) -> Dtype:
    """Read the name of a number type: float32, bfloat16 or float16, or fp32, bf16 or fp16.

    Raises:
        UnknownNameError: it is none of them.
    """
    for short, name in DTYPES.items():
        if text.strip().lower() in {short, name}:
            return name
    raise UnknownNameError("number type", text, DTYPES.values(), hint="(--dtype)")


def parse(text: str) -> Spec:
    """Parse `MODEL@SCHEME`, ignoring whitespace around it.

    >>> str(parse("minilm@W4"))
    'minilm@W4-g128-rtn'

    Raises:
        SpecError: it is not valid; start and end are positions in `text`.
    """
    start, end = _stripped(text)
    at = _split(text, start, end)
    return Spec(model=text[start:at], scheme=_scheme_at(text, at + 1, end))


PAIR = "quantdrift:"
"""The prefix of a pair's spec where a harness expects the name of a model."""


def pair_named(name: str) -> Spec | None:
    """The pair that a harness's model name stands for; None for an ordinary model."""
    if name.startswith(PAIR):
        return parse(name.removeprefix(PAIR))
    if re.search(r"@(W\d|fp\b)", name) and not Path(name).exists():
        raise UnsupportedError(f"expected {PAIR} before the spec of a pair; write {PAIR}{name}")
    return None


def parse_scheme(text: str) -> Scheme:
    """Parse `BITS{-PART}{+OPTION}`, with errors as in `parse`.

    >>> str(parse_scheme("W3.5-gptq-channel+seed=3+gap+query"))
    'W3.5-channel-gptq+query+gap+seed=3'
    """
    return _scheme_at(text, *_stripped(text))


def _scheme_at(text: str, start: int, end: int) -> Scheme:
    """Parse text[start:end] as a scheme or as the file of an allocation."""
    stored = _STORED.fullmatch(text[start:end])
    if stored is None:
        return Scheme(**_read_scheme(text, start, end))
    from quantdrift.allocation.record import scheme_of  # noqa: PLC0415 -- pydantic takes as long as all else here

    try:
        written = scheme_of(stored["file"], stored["rest"])
        return Scheme(**_read_scheme(written, 0, len(written)))
    except (QuantDriftError, RuntimeError, UnicodeError) as error:  # the last two from pathlib
        expected = f"a file of quantdrift allocate, then parts that fit it: {clean(str(error))}"
        raise error_at(text, start, end, "unusable allocation", expected) from error


# --- a model on a server --------------------------------------------------------------------------

_PREFIX, _PATH = "openai:", "/embeddings"
_ON_SERVER = re.compile(f"{_PREFIX}|https?://", re.IGNORECASE)
_SECRET = re.compile(r"https?://[^/#?]*@", re.IGNORECASE)
_ENDPOINT = re.compile(rf"{_PREFIX}(https?://[^\s?#]+)#(\S+)", re.IGNORECASE)
_ENDPOINT_LIKE = "openai:URL#MODEL without spaces and parameters, e.g. openai:http://localhost:8000/v1#my-model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A model on a server with OpenAI's API for embeddings.

    >>> str(read_endpoint("openai:HTTP://LocalHost:80/v1/#org/model"))
    'openai:http://localhost/v1#org/model'

    Attributes:
        url: base address, canonical.
        model: the server's name of the model.
    """

    url: str
    model: str

    @property
    def embeddings(self) -> str:
        """The URL for embeddings."""
        return self.url if self.url.endswith(_PATH) else self.url + _PATH

    @property
    def host(self) -> str:
        """The host without port."""
        return urlsplit(self.url).hostname or ""

    def __str__(self) -> str:
        return f"{_PREFIX}{self.url}#{self.model}"


def is_endpoint(name: str) -> bool:
    """Whether a name is that of a model on a server."""
    return name[: len(_PREFIX)].lower() == _PREFIX


def read_endpoint(name: str, *, text: str | None = None, start: int = 0) -> Endpoint:
    """Parse `openai:URL#MODEL`, which may be at `start` of a longer text that errors refer to."""
    from pydantic import AnyUrl  # noqa: PLC0415 -- a tenth of a second that only servers cost

    if _SECRET.search(name):
        message = (
            "the URL of a server contains a user or a password, which would end up in results: expected a URL without "
            "them; the key of a server is taken from OPENAI_API_KEY"
        )
        raise SpecError(message, text="", start=0, end=0)  # the text is not shown again
    try:
        match = _ENDPOINT.fullmatch(name)
        url = None if match is None else AnyUrl(match[1])
    except ValueError:
        url = None
    if match is None or url is None or not url.host:
        raise error_at(text or name, start, start + len(name), "unusable server", _ENDPOINT_LIKE)
    given = url.path or ""
    path = given.rstrip("/")
    path = path.removesuffix(_PATH).rstrip("/") or path or "/v1"
    return Endpoint(url=str(url).removesuffix(given) + path, model=match[2])


# --- two models: a reference, and a candidate that is quantized already ---------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Versus:
    """Two models; its string is canonical, `REFERENCE vs CANDIDATE`.

    Every pair is valid: `parse_pair(str(versus)) == versus`.

    >>> str(Versus(reference="minilm", candidate="./minilm-gptq"))
    'minilm vs ./minilm-gptq'

    Attributes:
        reference: short name, hub id or folder: one line, no whitespace at its ends; or a model on a server. The name
            becomes canonical.
        candidate: likewise, or a GGUF file.

    Raises:
        SpecError: the values make no valid pair; `text` is the string they would have.
    """

    reference: str
    candidate: str

    def __post_init__(self) -> None:
        text, n = str(self), len(self.reference)
        object.__setattr__(self, "reference", _side(text, 0, n, "reference"))
        object.__setattr__(self, "candidate", _side(text, n + len(" vs "), len(text), "candidate"))

    @property
    def model(self) -> str:
        """The reference, as a `Spec` has it."""
        return self.reference

    @property
    def on_server(self) -> bool:
        """Whether one of the two models is on a server."""
        return is_endpoint(self.reference) or is_endpoint(self.candidate)

    def __str__(self) -> str:
        return f"{self.reference} vs {self.candidate}"


def parse_pair(text: str) -> Spec | Versus:
    """Parse `MODEL@SCHEME` or `REFERENCE vs CANDIDATE`, ignoring whitespace around it.

    >>> parse_pair("minilm vs ./minilm-gptq")
    Versus(reference='minilm', candidate='./minilm-gptq')
    """
    start, end = _stripped(text)
    word = _VERSUS.search(text[start:end])
    if word is None:
        return parse(text)
    reference = _side(text, start, start + word.start(), "reference")
    return Versus(reference=reference, candidate=_side(text, start + word.end(), end, "candidate"))


def _side(text: str, start: int, end: int, what: str) -> str:
    """Check one of two models; return that of a server in canonical form, others unchanged."""
    name = text[start:end]
    _check_model(text, start, end, what, _VERSUS_LIKE)
    if scheme := re.search(r"@W[0-9][^@]*\Z", name):
        expected = f"a {what} as it is stored, without a scheme"
        raise error_at(text, start + scheme.start(), end, "unexpected", expected)
    return str(read_endpoint(name, text=text, start=start)) if _ON_SERVER.match(name) else short_name(name)


# --- calibration and the choice of widths ---------------------------------------------------------


def chooses(scheme: Scheme) -> bool:
    """Whether a criterion has to choose widths; not with one width for all layers or with those of a file."""
    return scheme.criterion is not None and scheme.option("allocation") is None


def needs_inputs(criterion: str | None) -> bool:
    """Whether a criterion needs calibration inputs: queries of a search, or train inputs of classes."""
    return criterion is not None and criterion.startswith(("gap", "activation"))


def calibrates(scheme: Scheme) -> bool:
    """Whether the candidate needs calibration documents."""
    by_quantizer = QUANTIZERS[scheme.quantizer].calibrated and scheme.weight_bits != FULL_BITS
    return by_quantizer or any(stage.calibrates(scheme) for stage in STAGES.values())


def draws(scheme: Scheme) -> bool:
    """Whether `+seed=` changes the candidate, because documents, queries or an order of layers are drawn."""
    return calibrates(scheme) or (chooses(scheme) and (needs_inputs(scheme.criterion) or scheme.criterion == "random"))
