"""The string that names a pair: what model, and how its candidate is made.

SPEC        := MODEL "@" SCHEME                      the last "@" splits
SCHEME      := BITS { "-" PART } { "+" OPTION }
BITS        := "W" NUMBER [ "A" INT ]                2 to 8, 4 to 8; also W16 if followed by A
PART        := GRANULARITY | QUANTIZER               in any order, each at most once
GRANULARITY := "channel" | "g" INT                   default g128
QUANTIZER   := one of QUANTIZERS                     default rtn
OPTION      := "query" | CRITERION | KEY "=" VALUE   in any order, each at most once
CRITERION   := one of CRITERIA                       needed for a fractional NUMBER
KEY         := one of OPTION_KEYS

In place of SCHEME, FILE.json { "-" QUANTIZER } { "+" OPTION } takes the widths that `quantdrift
allocate` has stored: it is short for the scheme that is written there, with +allocation=FILE.json.

Two models, `MODEL vs MODEL`, are read by `quantdrift.versus`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload
from urllib.parse import urlsplit

from quantdrift.errors import QuantDriftError, SpecError, UnknownNameError, UnsupportedError, nearest

if TYPE_CHECKING:  # they would load torch
    from quantdrift.engine.pair import QuantizedPair

# --- The widths a weight may have -----------------------------------------------------------------

MIN_BITS, MAX_BITS = 2, 8
"""Of quantized weights."""
FULL_BITS = 16
"""Stands for a weight that is left alone, whatever its dtype."""
POSSIBLE_BITS = frozenset({*range(MIN_BITS, MAX_BITS + 1), FULL_BITS})

# --- Reading the words of a spec, with errors that point at the character -------------------------

QUANTIZERS = ("rtn", "gptq", "gptq_ao", "awq", "hqq", "adaround")
_ACTIVATION = ("activation_error", "activation_salience", "activation_norm")
CRITERIA = ("gap", "gap_exact", "reconstruction", "sqnr", *_ACTIVATION, "depth", "random")
ALLOCATION_KEYS = ("allocation", "queries", "solver", "units", "widths")
"""Options that say how a criterion chooses widths."""
OPTION_KEYS = tuple(sorted((*ALLOCATION_KEYS, "backend", "calib", "grid", "head", "seed")))

DEFAULT_GROUP_SIZE = 128
DEFAULT_QUANTIZER = "rtn"

_WORDS: dict[str, tuple[str, Any]] = {
    "-channel": ("granularity", None),
    **{f"-{name}": ("quantizer", name) for name in QUANTIZERS},
    "+query": ("query", True),
    **{f"+{name}": ("criterion", name) for name in CRITERIA},
}
"""Sign and word to what it sets, and to what value."""
_NAMES = {word[1:]: word for word in _WORDS} | {key: f"+{key}=" for key in OPTION_KEYS}
_NUMBER = r"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?"
# Good bits but for case or a missing W, to suggest nothing that is an error in turn.
_BITS_LIKE = re.compile(r"[wW]?(8|[2-7](?:\.[0-9]+)?|16(?=[aA]))(?:[aA]([4-8]))?")
_GLUED = re.compile(
    rf"(W(?:8|[2-7](?:\.[0-9]+)?)(?:A[4-8])?|W16A[4-8])_?(channel|g[1-9][0-9]*|{'|'.join(QUANTIZERS)})", re.IGNORECASE
)
_CONTROL = r"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"  # line ends, and what UTF-8 cannot hold
_NOT_IN_MODEL = re.compile(rf"[{_CONTROL}]+|^\s+|(?<!\s)\s+\Z")
_NOT_IN_SCHEME = re.compile(rf"[\s{_CONTROL}]+|@")
_LIKE_THIS = "MODEL@SCHEME, e.g. minilm@W4-rtn"
_VERSUS = re.compile(r"(?:^|\s+)vs(?:\s+|$)")
_SCHEME_LIKE = re.compile(r"@W[0-9][^@]*\Z")
_VERSUS_LIKE_THIS = "MODEL vs MODEL, e.g. minilm vs ./minilm-gptq"
_PART = f"a granularity (channel, g128, ...) or a quantizer ({', '.join(QUANTIZERS)})"
_KEY = f"KEY=VALUE with KEY one of {', '.join(OPTION_KEYS)}"
_OPTION = f"query, a criterion ({', '.join(CRITERIA)}) or {_KEY}"


def error_at(text: str, start: int, end: int, problem: str, expected: str, *, meant: Collection[str] = ()) -> SpecError:
    """The error about text[start:end]; where that is empty, something is missing there."""
    found = text[start:end]
    problem = f"{problem} {found!r}" if found else f"missing {problem.partition(' ')[2]}"
    shown = text if text.strip() and text.isprintable() else repr(text)  # a message has one line
    hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
    message = f"{shown}: {problem} at character {start + 1}: expected {expected}{hint}"
    return SpecError(message, text=text, start=start, end=end)


def stripped(text: str) -> tuple[int, int]:
    """Where the text begins and ends without the whitespace around it."""
    end = len(text.rstrip())
    return min(len(text) - len(text.lstrip()), end), end


def split_spec(text: str, start: int, end: int) -> int:
    """Where the "@" is."""
    if versus := _find_versus(text, start, end):
        expected = f"one model and a scheme ({_LIKE_THIS}): two models are compared by quantdrift run only"
        raise error_at(text, versus[0], versus[1], "unexpected", expected)
    at = text.rfind("@", start, end)
    if at < 0:
        raise error_at(text, end, end, "unknown '@'", _LIKE_THIS)
    if at == start:
        raise error_at(text, at, at, "unknown model", _LIKE_THIS)
    if bad := _NOT_IN_MODEL.search(text, start, at):
        expected = "a model on one line, without spaces at its ends"
        raise error_at(text, *bad.span(), "unexpected", expected)
    return at


def split_versus(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Where the word "vs" begins and ends with the spaces around it; None if there is none.

    Raises:
        SpecError: the word is there, but no model on either side, or what is there is none.
    """
    versus = _find_versus(text, start, end)
    if versus is None:
        return None
    before, after = versus
    if again := _find_versus(text, after, end):
        raise error_at(text, *again, "second", f"two models, {_VERSUS_LIKE_THIS}")
    for side, (first, last) in {"reference": (start, before), "candidate": (after, end)}.items():
        if first >= last:
            raise error_at(text, first, first, f"unknown {side}", _VERSUS_LIKE_THIS)
        if bad := _NOT_IN_MODEL.search(text, first, last):
            expected = f"a {side} on one line, without spaces at its ends"
            raise error_at(text, *bad.span(), "unexpected", expected)
        if scheme := _SCHEME_LIKE.search(text, first, last):
            expected = f"a {side} as it is stored, without a scheme"
            raise error_at(text, scheme.start(), last, "unexpected", expected)
    return before, after


def _find_versus(text: str, start: int, end: int) -> tuple[int, int] | None:
    found = _VERSUS.search(text[start:end])  # a part, as "^" is the beginning of what is searched
    return None if found is None else (start + found.start(), start + found.end())


def read_scheme(text: str, start: int, end: int) -> dict[str, Any]:
    """The fields of the Scheme that text[start:end] spells."""
    if start == end:
        raise error_at(text, start, end, "unknown scheme", _LIKE_THIS)
    if bad := _NOT_IN_SCHEME.search(text, start, end):
        expected = "a scheme without spaces, control characters and '@'"
        raise error_at(text, *bad.span(), "unexpected", expected)
    head, *options = text[start:end].split("+")  # first, as a value may hold "-"
    bits, *parts = head.split("-")
    weight_bits, activation_bits = _read_bits(text, start, bits)
    at = start + len(bits)
    values: dict[str, Any] = {}
    for sign, word in [*(("-", part) for part in parts), *(("+", option) for option in options)]:
        at += 1
        what, value = _read_word(text, at, sign, word)
        if what in values:
            raise error_at(text, at, at + len(word), f"second {what}", f"at most one {what}")
        values[what] = value
        at += len(word)
    if not weight_bits.is_integer() and "criterion" not in values:
        width = bits.partition("A")[0]
        whole = int(weight_bits)
        expected = f"a criterion that says which layers get {whole} and which {whole + 1} bits"
        expected += f", e.g. {width}+gap"
        raise error_at(text, start, start + len(width), "no criterion for the width", expected)
    return {
        "weight_bits": weight_bits,
        "activation_bits": activation_bits,
        "group_size": values.get("granularity", DEFAULT_GROUP_SIZE),
        "quantizer": values.get("quantizer", DEFAULT_QUANTIZER),
        "query_only": values.get("query", False),
        "criterion": values.get("criterion"),
        "options": tuple((key, values[key]) for key in sorted(OPTION_KEYS) if key in values),
    }


def read_widths(scheme: str, bits: float, given: str | None) -> tuple[int, ...]:
    """The widths that a criterion chooses from, ascending.

    Args:
        scheme: the whole string, for messages.
        bits: what the layers' widths average to at most.
        given: as the scheme lists them; None for the whole numbers on both sides of `bits`.

    Raises:
        SpecError: they are no widths, or cannot average to `bits`.
    """
    start = scheme.find("+widths=") + len("+widths=") if given is not None else 0
    end = start + len(given) if given is not None else len(scheme)
    if given is None:
        if bits.is_integer():
            expected = "a fraction (W3.5), or the widths to choose from, e.g. +widths=2,3,4,8"
            raise error_at(scheme, 0, end, "nothing to choose between in", expected)
        return int(bits), int(bits) + 1
    if not re.fullmatch("[2-8](,[2-8])+", given):
        expected = "at least two whole numbers from 2 to 8 with commas between, e.g. 2,3,4,8"
        raise error_at(scheme, start, end, "malformed widths", expected)
    widths = tuple(sorted({int(width) for width in given.split(",")}))
    if not widths[0] <= bits <= widths[-1] or len(widths) == 1:
        expected = f"widths below and above the {bits:g} bits that they average to"
        raise error_at(scheme, start, end, "unsuitable widths", expected)
    return widths


def _read_bits(text: str, at: int, bits: str) -> tuple[float, int | None]:
    """Weight and activation bits that `bits`, found at `at`, spells."""
    end = at + len(bits)
    like = _BITS_LIKE.fullmatch(bits)
    meant = [f"W{like[1]}" + (f"A{like[2]}" if like[2] else "")] if like else []
    if like and (lower := re.search("[wa]", bits)):
        a = at + lower.start()
        raise error_at(text, a, a + 1, "lower-case", "W and A in upper case", meant=meant)
    if glued := _GLUED.fullmatch(bits):
        part = at + len(glued[1])
        apart = f"{glued[1].upper()}-{glued[2].lower()}"
        raise error_at(text, part, end, "unexpected", "'-' between bits and part", meant=[apart])
    if not bits.startswith("W"):
        expected = "W and a number of bits first, e.g. W4, W3.5 or W4A8"
        raise error_at(text, at, end, "unknown bits", expected, meant=meant)
    weight, mark, activation = bits[1:].partition("A")
    a = at + 1 + len(weight)
    weight_bits = float(weight) if re.fullmatch(_NUMBER, weight) else math.nan
    if not (MIN_BITS <= weight_bits <= MAX_BITS or weight_bits == FULL_BITS):
        problem = f"{'malformed' if math.isnan(weight_bits) else 'out-of-range'} weight bits"
        expected = "a plain number from 2 to 8, e.g. 4 or 3.5, or 16 with activation bits (W16A8)"
        raise error_at(text, at + 1, a, problem, expected)
    if mark and not re.fullmatch("[4-8]", activation):
        raise error_at(text, a + 1, end, "unsupported activation bits", "a whole number from 4 to 8")
    if weight_bits == FULL_BITS and not mark:
        expected = "2 to 8 weight bits, or activation bits too (W16A8)"
        raise error_at(text, at, end, "nothing would be quantized by", expected)
    return weight_bits, int(activation) if mark else None


def _read_word(text: str, at: int, sign: str, word: str) -> tuple[str, Any]:
    """What the part ("-") or option ("+") `word`, found at `at`, sets, and to what."""
    end = at + len(word)
    key, equals, value = word.partition("=")
    if sign + word in _WORDS:
        return _WORDS[sign + word]
    if sign == "+" and key in OPTION_KEYS:
        if not value:
            raise error_at(text, end, end, f"unknown value of {key}", f"{key}=VALUE")
        return key, value
    if sign == "-" and re.fullmatch("g(?![a-zA-Z_]).*", word):  # a group size, good or bad
        if not re.fullmatch("[1-9][0-9]{0,8}", word[1:]):  # int() does not take any length
            expected = "a whole number from 1 to 999999999 without leading zeros"
            raise error_at(text, at + 1, end, "malformed group size", expected)
        return "granularity", int(word[1:])
    name, _, part = word.partition("-")
    if sign == "+" and part and not equals and f"+{name}" in _WORDS:
        expected = "parts to stand before the first '+'"
        raise error_at(text, at + len(name), end, "misplaced part", expected)
    if sign == "-" and (size := re.fullmatch("G?([1-9][0-9]{0,8})", word)):
        meant = [f"g{size[1]}"]
    else:
        names = [key.lower()] if key.lower() in _NAMES else nearest(key, _NAMES)
        meant = [name if _NAMES[name][0] == sign else _NAMES[name] for name in names]
    if sign == "-":
        raise error_at(text, at, end, "unknown part", _PART, meant=meant)
    if equals and f"+{key}" not in _WORDS:
        raise error_at(text, at, at + len(key), "unknown key", _KEY, meant=meant)
    raise error_at(text, at, end, "unknown option", _OPTION, meant=meant)


# --- The name of a model on a server: where it answers, and what it is called there ---------------

_PREFIX = "openai:"
_NAMED = re.compile(r"openai:", re.IGNORECASE)
_BARE = re.compile(r"https?://", re.IGNORECASE)
_ADDRESS_VERSUS = re.compile(r"\svs\s")
_PATH = "/embeddings"
_ADDRESS_LIKE_THIS = "openai:URL#MODEL, e.g. openai:http://localhost:8000/v1#my-model"
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A model on a server that answers OpenAI's requests for embeddings.

    >>> str(read_endpoint("openai:HTTP://LocalHost:80/v1/#org/model"))
    'openai:http://localhost/v1#org/model'

    Attributes:
        url: base address, canonical.
        model: what the server calls the model.
    """

    url: str
    model: str

    @property
    def embeddings(self) -> str:
        """The address that embeds."""
        return self.url if self.url.endswith(_PATH) else self.url + _PATH

    @property
    def models(self) -> str:
        """The address that lists models, where a server has it."""
        return self.url.removesuffix(_PATH) + "/models"

    @property
    def host(self) -> str:
        """The host without its port."""
        return urlsplit(self.url).hostname or ""

    def __str__(self) -> str:
        return f"{_PREFIX}{self.url}#{self.model}"


def is_endpoint(name: str) -> bool:
    """Whether a name means a model on a server.

    Args:
        name: one side of two models.
    """
    return _NAMED.match(name) is not None


def canonical_model(name: str, text: str, start: int) -> str:
    """A model's name as it is written down: that of a server in its one form, others as they are.

    Args:
        name: one side of two models.
        text: what it is part of, for errors.
        start: where it begins there.

    Raises:
        SpecError: it is meant to name a server, and does not.
    """
    if _BARE.match(name):
        raise error_at(text, start, start, "unknown 'openai:'", _ADDRESS_LIKE_THIS)
    return str(read_endpoint(name, text=text, start=start)) if is_endpoint(name) else name


def read_endpoint(name: str, *, text: str | None = None, start: int = 0) -> Endpoint:
    """Read the name of a model on a server.

    Args:
        name: `openai:URL#MODEL`.
        text: what it is part of, for errors; itself if not given.
        start: where it begins there.

    Raises:
        SpecError: it is none; its start and end are positions in `text`.
    """
    text = name if text is None else text
    end = start + len(name)
    at = start + len(_PREFIX)
    url, mark, model = name[len(_PREFIX) :].partition("#")
    behind = at + len(url)
    if not is_endpoint(name):
        raise error_at(text, start, start, "unknown 'openai:'", _ADDRESS_LIKE_THIS)
    if bad := re.search(r"\s+", name):
        span = (start + bad.start(), start + bad.end())
        raise error_at(text, *span, "unexpected", "a URL and a model without spaces")
    if not url:
        raise error_at(text, at, at, "unknown URL", _ADDRESS_LIKE_THIS)
    if not _BARE.match(url):
        raise error_at(text, at, at, "unknown scheme", f"http:// or https:// first: {_ADDRESS_LIKE_THIS}")
    if not mark or not model:
        expected = f"# and the model's name on that server: {_ADDRESS_LIKE_THIS}"
        raise error_at(text, end, end, "unknown #MODEL" if not mark else "unknown model", expected)
    return Endpoint(url=_canonical(url, text, at, behind), model=model)


def refuse_endpoint(text: str, start: int, end: int) -> None:
    """Refuse a model on a server where MODEL@SCHEME is expected.

    Args:
        text: what was typed.
        start: where the spec begins in it.
        end: where it ends.

    Raises:
        SpecError: it names one.
    """
    if not is_endpoint(text[start:end]) or _ADDRESS_VERSUS.search(text, start, end):
        return
    scheme = _SCHEME_LIKE.search(text, start, end)
    if scheme is not None:
        name = text[start : scheme.start()]
        expected = "no scheme, as the weights of a server's model are not here to be quantized; "
        expected += f'run it beside another model: quantdrift run "REFERENCE vs {name}"'
        raise error_at(text, scheme.start(), end, "unexpected", expected)
    expected = "two models, as a server's is not quantized here: "
    expected += f'quantdrift run "REFERENCE vs {text[start:end]}"'
    raise error_at(text, start, start, "unknown 'REFERENCE vs'", expected)


def _canonical(url: str, text: str, start: int, end: int) -> str:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # a port that is no number, half an IPv6 address
        host, port, parts = None, None, None
    if not host or parts is None:
        expected = "a host, and where there is one a port: http://localhost:8000/v1"
        raise error_at(text, start, end, "malformed URL", expected)
    if parts.username is not None or parts.password is not None:
        message = (
            "the URL of a server holds a user or a password, which would end up in results: "
            "expected a URL without; the key of a server is taken from QUANTDRIFT_OPENAI_KEY"
        )
        raise SpecError(message, text="", start=0, end=0)  # the text is not shown again
    if parts.query or "?" in url:
        at = start + url.index("?")
        raise error_at(text, at, end, "unexpected", "a URL without parameters")
    scheme = parts.scheme.lower()
    named = f"[{host}]" if ":" in host else host
    place = named if port in {None, _PORTS[scheme]} else f"{named}:{port}"
    path = parts.path.rstrip("/")
    shorter = path.removesuffix(_PATH).rstrip("/")
    path = shorter or path or "/v1"
    return f"{scheme}://{place}{path}"


# --- The string that names a pair: what model, and how its candidate is made ----------------------

_STORED = re.compile(r"(?P<file>[^+=]+\.json)(?P<rest>(?:-[^+]*)?(?:\+.*)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How a candidate is made; its string is canonical, `BITS-GRANULARITY-QUANTIZER{+OPTION}`.

    Every scheme that exists is valid: `parse_scheme(str(scheme)) == scheme`.

    >>> str(Scheme(weight_bits=3.5, quantizer="gptq", criterion="gap"))
    'W3.5-g128-gptq+gap'

    Attributes:
        weight_bits: 2 to 8, or 16 (weights left alone) with activation bits; a fraction is the
            average over the layers, and needs a criterion.
        activation_bits: 4 to 8; None leaves activations alone.
        group_size: input weights that share a scale; None for a whole output channel.
        quantizer: one of QUANTIZERS.
        query_only: whether only the query side is quantized and the index stays at the reference.
        criterion: one of CRITERIA, which chooses the layers that get more bits, or None.
        options: (key, value) sorted by key; a mapping, or pairs in another order, become this.

    Raises:
        SpecError: the values make no scheme; `text` is what they would be written as.
    """

    weight_bits: float
    activation_bits: int | None = None
    group_size: int | None = DEFAULT_GROUP_SIZE
    quantizer: str = DEFAULT_QUANTIZER
    query_only: bool = False
    criterion: str | None = None
    options: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        # Reading back what is written applies every rule of the parser, and the round trip holds.
        try:
            pairs = self.options.items() if isinstance(self.options, Mapping) else self.options
            object.__setattr__(self, "options", tuple(sorted((key, value) for key, value in pairs)))
            text = str(self)
        except (TypeError, ValueError) as error:  # not pairs, or an int too long to be written
            message = f"expected a value for each attribute of Scheme: {error}"
            raise SpecError(message, text="", start=0, end=0) from error
        for name, value in read_scheme(text, 0, len(text)).items():
            if (given := getattr(self, name)) != value:
                problem, expected = f"{name} given as {given!r} in", f"{value!r}, as this reads"
                raise error_at(text, 0, len(text), problem, expected)
            object.__setattr__(self, name, value)  # bits given as an int become a float

    def __str__(self) -> str:
        bits = "W" + str(self.weight_bits).removesuffix(".0")
        activation = "" if self.activation_bits is None else f"A{self.activation_bits}"
        query = ["query"] if self.query_only else []
        criterion = [] if self.criterion is None else [self.criterion]
        options = [f"{key}={value}" for key, value in self.options]
        parts = f"{bits}{activation}-{self.granularity}-{self.quantizer}"
        return "+".join([parts, *query, *criterion, *options])

    @property
    def granularity(self) -> str:
        """Which weights share a scale, as the string spells it: `channel`, or `g` and a size."""
        return "channel" if self.group_size is None else f"g{self.group_size}"

    @property
    def is_mixed(self) -> bool:
        """Whether layers differ in width, which a fractional width means."""
        return not self.weight_bits.is_integer()

    @property
    def widths(self) -> tuple[int, ...]:
        """Whole bits per weight that a layer may have, ascending; one unless a criterion chooses.

        >>> parse_scheme("W3.5+gap").widths, parse_scheme("W4").widths
        ((3, 4), (4,))

        Raises:
            SpecError: the widths that the scheme names cannot average to its bits.
        """
        if self.criterion is None:
            return (int(self.weight_bits),)
        return read_widths(str(self), self.weight_bits, self.option("widths"))

    def at(self, bits: int) -> Scheme:
        """The same with one width for all layers, and nothing that chooses between widths."""
        options = [(key, value) for key, value in self.options if key not in ALLOCATION_KEYS]
        return replace(self, weight_bits=float(bits), criterion=None, options=tuple(options))

    @overload
    def option(self, key: str) -> str | None: ...
    @overload
    def option(self, key: str, default: str) -> str: ...
    def option(self, key: str, default: str | None = None) -> str | None:
        """The value of an option, else `default`; UnknownNameError if `key` is not in OPTION_KEYS.

        >>> parse_scheme("W4-gptq+calib=64").option("calib")
        '64'
        """
        if key not in OPTION_KEYS:
            raise UnknownNameError("option", key, OPTION_KEYS)
        return dict(self.options).get(key, default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A model and the scheme of its candidate; its string is canonical, `MODEL@SCHEME`.

    Every spec that exists is valid: `parse(str(spec)) == spec`.

    >>> str(Spec(model="BAAI/bge-m3", scheme=Scheme(weight_bits=8)))
    'BAAI/bge-m3@W8-g128-rtn'

    Attributes:
        model: short name, hub id or folder: one line, not empty, no whitespace at its ends.
        scheme: how the candidate is made.

    Raises:
        SpecError: the values make no spec; `text` is what they would be written as.
    """

    model: str
    scheme: Scheme

    def __post_init__(self) -> None:
        if not (isinstance(self.model, str) and isinstance(self.scheme, Scheme)):
            got = f"{type(self.model).__name__} and {type(self.scheme).__name__}"
            raise SpecError(f"expected str and Scheme, got {got}", text="", start=0, end=0)
        split_spec(str(self), 0, len(str(self)))

    def __str__(self) -> str:
        return f"{self.model}@{self.scheme}"


def parse(text: str) -> Spec:
    """Read `MODEL@SCHEME`; whitespace around it does not count.

    >>> str(parse("minilm@W4"))
    'minilm@W4-g128-rtn'

    Args:
        text: a spec.

    Raises:
        SpecError: it is none; its start and end are positions in `text`.
    """
    start, end = stripped(text)
    refuse_endpoint(text, start, end)
    at = split_spec(text, start, end)
    return Spec(model=text[start:at], scheme=_scheme_at(text, at + 1, end))


def parse_scheme(text: str) -> Scheme:
    """Read `BITS{-PART}{+OPTION}`, with errors as in `parse`.

    >>> str(parse_scheme("W3.5-gptq-channel+seed=3+gap+query"))
    'W3.5-channel-gptq+query+gap+seed=3'
    """
    return _scheme_at(text, *stripped(text))


def _scheme_at(text: str, start: int, end: int) -> Scheme:
    """The scheme that text[start:end] spells, or that an allocation there was made with."""
    if stored := _STORED.fullmatch(text[start:end]):
        from quantdrift.allocation.record import scheme_of  # noqa: PLC0415 -- it imports this

        behind = start + len(stored["file"])
        try:
            written = scheme_of(stored["file"], stored["rest"])
        except (QuantDriftError, OSError, ValueError, RuntimeError) as error:
            why = "a file that quantdrift allocate has written: " + " ".join(str(error).split())
            raise error_at(text, start, behind, "unusable allocation", why) from error
        try:
            return Scheme(**read_scheme(written, 0, len(written)))
        except SpecError as error:
            why = f"a quantizer or options that fit the file: {error}"
            raise error_at(text, behind, end, "unsuitable part", why) from error
    return Scheme(**read_scheme(text, start, end))


# --- The words that name two models: a reference, and a candidate that is quantized already -------

WORD = " vs "


@dataclass(frozen=True, slots=True, kw_only=True)
class Versus:
    """Two models; its string is canonical, `REFERENCE vs CANDIDATE`.

    Every one that exists is valid: `parse_pair(str(versus)) == versus`.

    >>> str(Versus(reference="minilm", candidate="./minilm-gptq"))
    'minilm vs ./minilm-gptq'

    Attributes:
        reference: short name, hub id or folder: one line, no whitespace at its ends; or a model on
            a server, which becomes canonical.
        candidate: likewise, or a GGUF file.

    Raises:
        SpecError: the values make no such pair; `text` is what they would be written as.
    """

    reference: str
    candidate: str

    def __post_init__(self) -> None:
        if not (isinstance(self.reference, str) and isinstance(self.candidate, str)):
            got = f"{type(self.reference).__name__} and {type(self.candidate).__name__}"
            raise SpecError(f"expected str and str, got {got}", text="", start=0, end=0)
        text, n = str(self), len(self.reference)
        before, after = split_versus(text, 0, len(text)) or (n, n)
        if (before, after) != (n, n + len(WORD)):  # the word takes the spaces beside it
            start, end = (before, n) if before < n else (n + len(WORD), after)
            expected = "models without spaces at their ends"
            raise error_at(text, start, end, "unexpected", expected)
        for side, at in (("reference", 0), ("candidate", n + len(WORD))):
            object.__setattr__(self, side, canonical_model(getattr(self, side), text, at))

    @property
    def model(self) -> str:
        """The reference: what a run is of."""
        return self.reference

    @property
    def on_server(self) -> bool:
        """Whether one of the two is a model on a server."""
        return is_endpoint(self.reference) or is_endpoint(self.candidate)

    def __str__(self) -> str:
        return f"{self.reference}{WORD}{self.candidate}"


def parse_pair(text: str) -> Spec | Versus:
    """Read `MODEL@SCHEME` or `REFERENCE vs CANDIDATE`; whitespace around it does not count.

    >>> parse_pair("minilm vs ./minilm-gptq")
    Versus(reference='minilm', candidate='./minilm-gptq')
    >>> str(parse_pair("minilm@W4"))
    'minilm@W4-g128-rtn'

    Args:
        text: what is to be compared.

    Raises:
        SpecError: it is neither; its start and end are positions in `text`.
    """
    start, end = stripped(text)
    versus = split_versus(text, start, end)
    if versus is None:
        return parse(text)
    before, after = versus
    return Versus(
        reference=canonical_model(text[start:before], text, start),
        candidate=canonical_model(text[after:end], text, after),
    )


# --- Where there is nothing to choose widths on, a scheme that chooses them is refused ------------


def chooses(scheme: Scheme) -> bool:
    """Whether widths are to be chosen anew, rather than one for all or those of a file.

    >>> from quantdrift.spec import parse_scheme
    >>> chooses(parse_scheme("W3.5+gap")), chooses(parse_scheme("W4"))
    (True, False)

    Args:
        scheme: how the candidate is made.
    """
    return scheme.criterion is not None and scheme.option("allocation") is None


def refuse_unchosen(pair: QuantizedPair, why: str, *, named: str) -> None:
    """Refuse a pair whose widths would have to be chosen where they cannot be.

    Args:
        pair: the weights.
        why: that cannot be, a clause.
        named: how a pair of a stored allocation is written here.

    Raises:
        UnsupportedError: a criterion has to choose its widths, and has not.
    """
    if pair.needs_widths:
        raise UnsupportedError(
            f"the criterion {pair.scheme.criterion} chooses the layers' widths on a search over "
            f"embeddings, and {why}. Choose widths with quantdrift allocate and name the file: "
            f"{named}"
        )
