"""The identity of a measurement, its pair, data and settings: what may be compared, and what a file is for."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from quantdrift.base.errors import QuantDriftError, RunError, SpecError
from quantdrift.base.records import texts_digest
from quantdrift.spec.grammar import DTYPES, Spec, Versus, parse_pair

HARMLESS = frozenset({"k", "batch_size", "noise_floor", "seed"})
"""Settings that change what is stored or how noise is measured, not what a metric means."""

SOFTWARE = frozenset({"device", "probe", "torch", "transformers", "sentence-transformers"})
"""Settings that change scores by rounding only; the reference's own answers show if they did. A
probe of the same data and weights is one: fitted anew elsewhere, it differs in its last digits."""

COMPARED = ("reference", "data", "meaning")
"""Facts that two runs share whose candidates are compared."""

SERVED = ("pair", "reference", "candidate", "scores", "probe")
"""Facts that a threshold and the scores it is asked about share, as far as both are known."""

_STORED = (
    *("spec", "model_fingerprint", "candidate_fingerprint", "reading", "similarity", "probe", "data"),
    *("data_fingerprint", "split", "subset", "inputs", "dtype", "device"),
)
_OF_DATA = ("subset", "revision", "n_fewshot")
"""What a harness tells of data that it has no digest of, beside name and split."""
_PLACES = re.compile(r"(?:(?<![^\s=])(?:~|\.{1,2})?/(?:[^\s/]+/)*|https?://[^\s#]*#?)(?=[^\s/])")
"""The folders that a path of one's own begins with, and a server's address; a name on a hub begins with neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The pair that was measured, the data and the settings; None for what is not known.

    Attributes:
        spec: the pair, `MODEL@SCHEME` or `A vs B`, in its canonical form where it has one.
        model: name of the reference.
        model_fingerprint: digest of the reference's weights.
        candidate_fingerprint: digest of the candidate.
        data: name of the data.
        data_fingerprint: digest of the data.
        split: of the data.
        subset: of the data.
        inputs: digest of the ids of the inputs, whatever their order.
        settings: of the measurement, as JSON values.
    """

    spec: str | None = None
    model: str | None = None
    model_fingerprint: str | None = None
    candidate_fingerprint: str | None = None
    data: str | None = None
    data_fingerprint: str | None = None
    split: str | None = None
    subset: str | None = None
    inputs: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        on: Mapping[str, Any] | str | None = None,
        *,
        spec: str | None = None,
        model_fingerprint: str | None = None,
        candidate_fingerprint: str | None = None,
        input_ids: Iterable[object] | None = None,
    ) -> Identity:
        """Read the identity of a run from its record, or from what else is known of it."""
        record = on if isinstance(on, Mapping) else {"data": {"name": on}, "spec": spec}
        named, recorded = _canonical(spec), _canonical(_text(record, "spec"))
        if named not in {None, recorded}:
            raise RunError(
                f"expected the record of a run of {spec}; got one of {recorded or 'an unnamed pair'}. Leave the spec "
                "out to take that of the record"
            )
        model, data = _part(record, "model"), _part(record, "data")
        facts = () if _text(data, "fingerprint") else _OF_DATA
        told = {f"data {name}": data[name] for name in facts if data.get(name) is not None}
        candidate = _text(model, "candidate_fingerprint") or _text(_part(model, "candidate"), "fingerprint")
        return cls(
            spec=recorded,
            model=_text(model, "name"),
            model_fingerprint=model_fingerprint or _text(model, "fingerprint"),
            candidate_fingerprint=candidate_fingerprint or candidate,
            data=_text(data, "name"),
            data_fingerprint=_text(data, "fingerprint"),
            split=_text(data, "split"),
            subset=_text(data, "subset"),
            inputs=None if input_ids is None else texts_digest(sorted(map(str, input_ids)), size=16),
            settings=json.loads(json.dumps({**_part(record, "settings"), **told}, sort_keys=True)),  # as read back
        )

    @classmethod
    def from_json(cls, content: Any) -> Identity:
        """From the JSON object that `to_json` made."""
        if not isinstance(content, dict) or content.keys() != set(_STORED):
            raise ValueError(f"expected an object of {', '.join(_STORED)}; got {content!r:.80}")
        for name, value in content.items():
            if not (value is None or isinstance(value, str)):
                raise ValueError(f"{name} is {value!r:.80}")
        fields = {name: value for name, value in content.items() if value is not None}
        settings = {name: fields.pop(name) for name in ("reading", "similarity", "dtype", "device") if name in fields}
        if "probe" in fields:
            settings["probe"] = {"digest": fields.pop("probe")}
        return cls(**fields, settings=settings)

    def to_json(self) -> dict[str, str | None]:
        """Give the JSON object by which a file tells where its threshold comes from."""
        return {name: getattr(self, name, None) or _text(self.settings, name) for name in _STORED}

    def brief(self) -> Identity:
        """Keep what a file of a threshold holds, and so what reads back."""
        return self.from_json(self.to_json())

    @property
    def reading(self) -> str | None:
        """The kind of scores: "logits", "linear probe", "self-retrieval", "retrieval"."""
        return _text(self.settings, "reading") or (None if self.similarity is None else "retrieval")

    @property
    def similarity(self) -> str | None:
        """The similarity of embeddings, where they are scored by one."""
        return _text(self.settings, "similarity")

    @property
    def probe(self) -> str | None:
        """Digest of the linear probe, where there is one."""
        return _text(_part(self.settings, "probe"), "digest")

    @property
    def data_name(self) -> str:
        """Name of the data, with its split."""
        return (self.data or "unnamed data") + (f" ({self.split})" if self.split else "")

    @property
    def meaning(self) -> dict[str, Any]:
        """The settings that change what scores mean."""
        return {name: value for name, value in self.settings.items() if name not in HARMLESS | SOFTWARE}

    @property
    def software(self) -> dict[str, Any]:
        """The settings that change scores by rounding."""
        return {name: value for name, value in self.settings.items() if name in SOFTWARE}

    def differences(
        self, other: Identity, facts: Collection[str] = COMPARED, *, sides: tuple[str, str] = ("in A", "in B")
    ) -> list[str]:
        """List what differs, a line each: the fact, and its value on either side.

        Digests and scores count where both are known; data without a digest is known by its name.
        """
        lines: list[str] = []

        def held(what: str, mine: Any, theirs: Any) -> None:
            if mine != theirs:
                lines.append(f"{what}: {_told(mine)} {sides[0]}, {_told(theirs)} {sides[1]}")

        def digests(what: str, field: str, name: str, hint: str = "") -> None:
            mine, theirs = (str(getattr(side, field))[:12] for side in (self, other))
            if differ(getattr(self, field), getattr(other, field)):
                named = dict.fromkeys(getattr(side, name) or side.spec or "" for side in (self, other))
                names = f", {sides[1]} ".join(name for name in named if name)
                lines.append(f"{what}: {names} (digest {mine} {sides[0]}, {theirs} {sides[1]}){hint}")

        if "pair" in facts and not self._same_pair(other):
            held("pair", *(side.spec or side.model_fingerprint or "none that is told" for side in (self, other)))
        if "reference" in facts:
            digests("reference model", "model_fingerprint", "model")
        if "name" in facts and None in (self.model_fingerprint, other.model_fingerprint):
            held("reference model", self.model, other.model)
        if "candidate" in facts:
            digests("quantized weights", "candidate_fingerprint", "spec")
        if "data" in facts:
            digests("data", "data_fingerprint", "data_name", ": ids, texts or labels are others, or their order")
            if None in (self.data_fingerprint, other.data_fingerprint):
                held("data", self.data_name, other.data_name)
        if "scores" in facts and (differ(self.reading, other.reading) or differ(self.similarity, other.similarity)):
            held("scores", self.scores, other.scores)
        if "probe" in facts:
            digests("linear probe", "probe", "spec")
        for fact, title in (("meaning", "setting {}"), ("software", "{} differs")):
            if fact in facts:
                mine, theirs = (getattr(side, fact) for side in (self, other))
                for name in sorted(mine.keys() | theirs.keys()):
                    held(title.format(name), mine.get(name), theirs.get(name))
        return lines

    def refuse_other(
        self, here: Identity, *, what: str, make: str, error: type[QuantDriftError], candidate: bool = True
    ) -> None:
        """Refuse scores that a threshold is not for: what moves one pair says nothing of another."""
        facts = [fact for fact in SERVED if candidate or fact != "candidate"]
        if lines := self.differences(here, facts, sides=("when it was made", "now")):
            raise error(f"{what} is for another pair or other scores: {'; '.join(lines)}. Make one for these: {make}")

    @property
    def scores(self) -> str:
        """The kind of scores and their similarity, in words."""
        by = "" if self.similarity is None else f" by {self.similarity}"
        return f"{self.reading or 'an unknown reading'}{by}"

    def _same_pair(self, here: Identity) -> bool:
        """Whether the names mean one pair: a model has a short name, a hub id and folders."""
        if here.spec is None:  # then digests are compared, but of a pair that is told of
            return here.model_fingerprint is None or not (self.spec is None and self.model_fingerprint is None)
        if self.spec == here.spec:
            return True
        if self.model_fingerprint is None or self.model_fingerprint != here.model_fingerprint:
            return False
        mine, other = _pair(self.spec), _pair(here.spec)
        if isinstance(mine, Spec) and isinstance(other, Spec):
            return str(mine.scheme) == str(other.scheme)
        if isinstance(mine, Versus) and isinstance(other, Versus):
            recorded = self.candidate_fingerprint is not None
            same = recorded and self.candidate_fingerprint == here.candidate_fingerprint
            return same or mine.candidate == other.candidate
        return False


def differ(mine: str | None, theirs: str | None) -> bool:
    """Whether both are known and not the same."""
    return mine is not None and theirs is not None and mine != theirs


def _told(value: Any) -> str:
    if isinstance(value, Mapping) and "digest" in value:
        return f"digest {str(value['digest'])[:12]}"
    return "nothing" if value is None else str(value)


def _pair(spec: str | None) -> Spec | Versus | None:
    try:
        return None if spec is None else parse_pair(spec)
    except SpecError:  # a name of the user's own
        return None


def _canonical(spec: str | None) -> str | None:
    pair = _pair(spec)
    return spec if pair is None else str(pair)


def _part(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = record.get(name)
    return part if isinstance(part, Mapping) else {}


def _text(part: Mapping[str, Any], name: str) -> str | None:
    value = part.get(name)
    return value if isinstance(value, str) else None


def signature(record: Mapping[str, Any]) -> str:
    """Name on one line what decides the figures of a run.

    Version, pair, data, number type and scores, then digests of both models' weights, inputs, batch size, torch and the
    packages of others that brought a part, as far as they are known; of a folder its last name only, and no server's
    address.

    >>> signature({"spec": "./models/mine@W4", "data": {"name": "faq", "fingerprint": "a1b2c3d4e5", "split": "test"}})
    'quantdrift:?|mine@W4-g128-rtn|faq/test#a1b2c3d4'
    """
    run = Identity.of(record)
    dtype = str(run.settings.get("dtype") or "").removeprefix("torch.")
    short = next((short for short, name in DTYPES.items() if name == dtype), dtype)
    data = "/".join(filter(None, (run.data, run.subset, run.split)))
    keyed = {
        "model": (run.model_fingerprint or "").rpartition(":")[2][:8],
        "candidate": (run.candidate_fingerprint or "")[:8],
        "n": _part(_part(record, "metrics"), "flip@1").get("n"),
        "own ids": run.settings.get("own_ids"),
        "batch": run.settings.get("batch_size"),
        "torch": run.settings.get("torch"),
        **_part(record, "parts"),
    }
    data += f"#{run.data_fingerprint[:8]}" if run.data_fingerprint else ""
    parts = [f"quantdrift:{_part(record, 'versions').get('quantdrift', '?')}", _PLACES.sub("", run.spec or "unnamed")]
    parts += [data, short, run.similarity or run.reading or ""]
    parts += [f"{name}:{value}" for name, value in keyed.items() if value]
    return "|".join(" ".join(part.replace("|", "/").split()) for part in parts if part)


def classifies(record: Mapping[str, Any]) -> bool:
    """Whether a run.json is of inputs that were put into classes, not of searches."""
    return bool((record.get("data") or {}).get("kind") == "classification")


_RANKED = frozenset({None, "reranking", "self-retrieval"})
"""Readings that rank documents; in the others an input has one right answer."""


def answers(record: Mapping[str, Any]) -> Literal["top-1", "class", "answer"]:
    """What an input of a run.json gets: the top-1 of a ranking, or a class or an answer, which is right or wrong."""
    if classifies(record):
        return "class"
    return "top-1" if (record.get("settings") or {}).get("reading") in _RANKED else "answer"


def is_part(record: Mapping[str, Any]) -> bool:
    """Whether a run.json is of a part of a corpus, which is no further corpus."""
    size = (record.get("data") or {}).get("corpus_size")
    return bool(size and size["n"] < size["of"])
