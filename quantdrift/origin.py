"""What a threshold was set on (a stability check's, a router's): it holds for no other pair."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any

from quantdrift.errors import QuantDriftError, RunError, SpecError
from quantdrift.spec import Spec, Versus, parse_pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the scores came from that a threshold was set on; None for what is not known.

    Attributes:
        spec: the pair, `MODEL@SCHEME` or `A vs B`, in its canonical form where it has one.
        model_fingerprint: digest of the reference's weights.
        candidate_fingerprint: digest of the candidate.
        reading: what the scores are: "logits", "linear probe", "self-retrieval", "retrieval".
        similarity: of embeddings, where they are scored by one.
        probe: digest of the linear probe, where there is one.
        data: name of the data.
        data_fingerprint: digest of the data.
        split: of the data.
        subset: of the data.
        inputs: digest of the ids of the inputs, whatever their order.
        dtype: of the reference's weights.
        device: that the models ran on.
    """

    spec: str | None = None
    model_fingerprint: str | None = None
    candidate_fingerprint: str | None = None
    reading: str | None = None
    similarity: str | None = None
    probe: str | None = None
    data: str | None = None
    data_fingerprint: str | None = None
    split: str | None = None
    subset: str | None = None
    inputs: str | None = None
    dtype: str | None = None
    device: str | None = None

    @classmethod
    def of(
        cls,
        on: Mapping[str, Any] | str | None = None,
        *,
        spec: str | None = None,
        model_fingerprint: str | None = None,
        candidate_fingerprint: str | None = None,
        input_ids: Iterable[object] | None = None,
    ) -> Origin:
        """What is known of the scores.

        Args:
            on: the record of a run (run.json), or the name of the data.
            spec: the pair; that of the record if not given.
            model_fingerprint: digest of the reference's weights; likewise.
            candidate_fingerprint: digest of the candidate; likewise.
            input_ids: of the inputs.

        Raises:
            RunError: the record is of another pair than `spec`.
        """
        named = _canonical(spec)
        inputs = None if input_ids is None else _digest(input_ids)
        if on is None or isinstance(on, str):
            return cls(
                spec=named,
                model_fingerprint=model_fingerprint,
                candidate_fingerprint=candidate_fingerprint,
                data=on,
                inputs=inputs,
            )
        own = _canonical(on.get("spec"))
        if named not in {None, own}:
            raise RunError(
                f"expected the record of a run of {spec}; got one of {own or 'an unnamed pair'}. "
                "Leave the spec out to take that of the record"
            )
        model, data, settings = (_part(on, name) for name in ("model", "data", "settings"))
        similarity = _text(settings, "similarity")
        searches = None if similarity is None else "retrieval"  # these name no reading
        candidate = _text(model, "candidate_fingerprint")
        return cls(
            spec=own,
            model_fingerprint=model_fingerprint or _text(model, "fingerprint"),
            candidate_fingerprint=candidate_fingerprint or candidate or _text(_part(model, "candidate"), "fingerprint"),
            reading=_text(settings, "reading") or searches,
            similarity=similarity,
            probe=_text(_part(settings, "probe"), "digest"),
            data=_text(data, "name"),
            data_fingerprint=_text(data, "fingerprint"),
            split=_text(data, "split"),
            subset=_text(data, "subset"),
            inputs=inputs,
            dtype=_text(settings, "dtype"),
            device=_text(settings, "device"),
        )

    @classmethod
    def read(cls, content: Any) -> Origin:
        """From the JSON object that `dataclasses.asdict` made.

        Raises:
            ValueError: it is another object; says what is wrong, for the message of a file.
        """
        names = [field.name for field in fields(cls)]
        if not isinstance(content, dict) or content.keys() != set(names):
            raise ValueError(f"expected an object of {', '.join(names)}; got {content!r}")
        for name, value in content.items():
            if not (value is None or isinstance(value, str)):
                raise ValueError(f"{name} is {value!r}")
        return cls(**content)

    @property
    def scores(self) -> str:
        """What the scores are, in words."""
        by = "" if self.similarity is None else f" by {self.similarity}"
        return f"{self.reading or 'an unknown reading'}{by}"

    def refuse_other(
        self, here: Origin, *, what: str, make: str, error: type[QuantDriftError], candidate: bool = True
    ) -> None:
        """Refuse another pair or other scores: what moves one says nothing of another.

        What is not known of either is not compared; but where the pair is asked about, this one
        has to say which it is for.

        Args:
            here: what is to be served.
            what: is of this pair, for messages: "the router r.json".
            make: the command that makes one for another pair.
            error: what to raise.
            candidate: whether other weights of the candidate are refused, too.

        Raises:
            QuantDriftError: an `error`: it is another pair, or this one is not known.
        """
        self._refuse_pair(here, what, make, error)
        if candidate and differ(self.candidate_fingerprint, here.candidate_fingerprint):
            raise error(
                f"{what} is for other quantized weights of {self.spec or 'the candidate'} (digest "
                f"{self.candidate_fingerprint}, now {here.candidate_fingerprint}); a quantizer "
                f"that is calibrated on other data gives others. Make one for these: {make}"
            )
        if differ(self.reading, here.reading) or differ(self.similarity, here.similarity):
            raise error(
                f"{what} is for scores of {self.scores}, and is asked about scores of "
                f"{here.scores}; a threshold is in the unit of its own scores. Make one for "
                f"these: {make}"
            )
        if differ(self.probe, here.probe):
            raise error(
                f"{what} is for the logits of another linear probe (digest {self.probe}, now "
                f"{here.probe}); a probe that is fitted on other inputs or embeddings gives other "
                f"scores. Make one for this probe: {make}"
            )

    def _refuse_pair(self, here: Origin, what: str, make: str, error: type[QuantDriftError]) -> None:
        if here.spec is None and here.model_fingerprint is None:
            return
        if self.spec is None and self.model_fingerprint is None:
            raise error(
                f"{what} does not say which pair it is for, and is asked about "
                f"{here.spec or here.model_fingerprint}. Make one that does: {make}"
            )
        if here.spec is not None and not self._same_pair(here):
            raise error(
                f"{what} is for {self.spec or 'an unnamed pair'}, and is asked about {here.spec}; "
                f"what one quantization moves says nothing of another. Make one for it: {make}"
            )
        if differ(self.model_fingerprint, here.model_fingerprint):
            raise error(
                f"{what} is for other weights of {self.spec or 'the reference'} (digest "
                f"{self.model_fingerprint}, now {here.model_fingerprint}). Make it again: {make}"
            )

    def _same_pair(self, here: Origin) -> bool:
        """Whether the names mean one pair: a model has a short name, a hub id and folders."""
        if self.spec == here.spec:
            return True
        if self.model_fingerprint is None or self.model_fingerprint != here.model_fingerprint:
            return False
        own, other = _pair(self.spec), _pair(here.spec)
        if isinstance(own, Spec) and isinstance(other, Spec):
            return str(own.scheme) == str(other.scheme)
        if isinstance(own, Versus) and isinstance(other, Versus):
            known = self.candidate_fingerprint is not None
            same = known and self.candidate_fingerprint == here.candidate_fingerprint
            return same or own.candidate == other.candidate
        return False


def differ(one: str | None, other: str | None) -> bool:
    """Whether both are known and not the same."""
    return one is not None and other is not None and one != other


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


def _digest(input_ids: Iterable[object]) -> str:
    digest = blake2b(digest_size=16)
    for name in sorted(str(one).encode() for one in input_ids):
        digest.update(len(name).to_bytes(8, "little") + name)
    return digest.hexdigest()
