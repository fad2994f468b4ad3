"""What a threshold was set on (a stability check's, a router's): it holds for no other pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from quantdrift.errors import QuantDriftError, RunError, SpecError
from quantdrift.spec import parse

__all__ = ["Origin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the inputs came from that a threshold was set on; None for what is not known.

    Attributes:
        spec: the pair, `MODEL@SCHEME`, in its canonical form where it has one.
        model_fingerprint: digest of the reference's weights.
        data: name of the data.
        data_fingerprint: digest of the data.
        split: of the data.
    """

    spec: str | None = None
    model_fingerprint: str | None = None
    data: str | None = None
    data_fingerprint: str | None = None
    split: str | None = None

    @classmethod
    def of(cls, on: Mapping[str, Any] | str | None = None, *, spec: str | None = None) -> Origin:
        """What is known of the inputs.

        Args:
            on: the record of a run (run.json), or the name of the data.
            spec: the pair; that of the record if not given.

        Raises:
            RunError: the record is of another pair than `spec`.
        """
        named = _canonical(spec)
        if on is None or isinstance(on, str):
            return cls(spec=named, data=on)
        model, data, own = on.get("model") or {}, on.get("data") or {}, _canonical(on.get("spec"))
        if named not in {None, own}:
            raise RunError(
                f"expected the record of a run of {spec}; got one of {own or 'an unnamed pair'}. "
                "Leave the spec out to take that of the record"
            )
        return cls(
            spec=own,
            model_fingerprint=model.get("fingerprint"),
            data=data.get("name"),
            data_fingerprint=data.get("fingerprint"),
            split=data.get("split"),
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

    def refuse_other(
        self,
        *,
        what: str,
        make: str,
        error: type[QuantDriftError],
        spec: str | None = None,
        model_fingerprint: str | None = None,
    ) -> None:
        """Refuse another pair than this: what one quantization moves says nothing of another.

        Args:
            what: is of this pair, for messages: "the router r.json".
            make: the command that makes one for another pair.
            error: what to raise.
            spec: the pair to be served; not looked at if None.
            model_fingerprint: digest of its reference's weights, likewise. Of a pair that is known
                by its spec alone it is not compared.

        Raises:
            QuantDriftError: an `error`: it is another pair, or this one is not known.
        """
        if spec is None and model_fingerprint is None:
            return
        if self.spec is None and self.model_fingerprint is None:
            raise error(
                f"{what} does not say which pair it is for, and is asked about "
                f"{spec or model_fingerprint}. Make one that does: {make}"
            )
        if spec is not None and _canonical(spec) != self.spec:
            raise error(
                f"{what} is for {self.spec or 'an unnamed pair'}, and is asked about {spec}; what "
                f"one quantization moves says nothing of another. Make one for it: {make}"
            )
        known = model_fingerprint is not None and self.model_fingerprint is not None
        if known and model_fingerprint != self.model_fingerprint:
            raise error(
                f"{what} is for other weights of {self.spec or 'the reference'} (digest "
                f"{self.model_fingerprint}, now {model_fingerprint}). Make it again: {make}"
            )


def _canonical(spec: str | None) -> str | None:
    if spec is None:
        return None
    try:
        return str(parse(spec))
    except SpecError:  # two models side by side, or a name of the user's own
        return spec
