"""What a stability check was calibrated on, and what it must therefore not be used for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantdrift.errors import SpecError
from quantdrift.spec import parse
from quantdrift.stability.errors import StabilityError

__all__ = ["Origin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where calibration inputs came from; None for what is not known.

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
        """What is known of the calibration inputs.

        Args:
            on: the record of a run (run.json), or the name of the data.
            spec: the pair; that of the record if not given.

        Raises:
            StabilityError: the record is of another pair than `spec`.
        """
        if on is None or isinstance(on, str):
            return cls(spec=_canonical(spec), data=on)
        model, data = on.get("model") or {}, on.get("data") or {}
        own = cls(
            spec=_canonical(on.get("spec")),
            model_fingerprint=model.get("fingerprint"),
            data=data.get("name"),
            data_fingerprint=data.get("fingerprint"),
            split=data.get("split"),
        )
        own.refuse_other(spec=spec)
        return own

    def refuse_other(
        self, *, spec: str | None = None, model_fingerprint: str | None = None
    ) -> None:
        """Refuse another pair than the one calibrated on.

        Args:
            spec: the pair to be served; not looked at if None.
            model_fingerprint: digest of its reference's weights; compared where both are known.

        Raises:
            StabilityError: it is another pair, or the check does not know its own.
        """
        if spec is not None and _canonical(spec) != self.spec:
            was = "an unnamed pair" if self.spec is None else self.spec
            raise StabilityError(
                f"this stability check was calibrated on {was}, and is asked about {spec}; what "
                "one quantization moves says nothing of another. Calibrate a check for it: "
                "quantdrift certify RUN --alpha A --save FILE"
            )
        known = self.model_fingerprint is not None and model_fingerprint is not None
        if known and model_fingerprint != self.model_fingerprint:
            raise StabilityError(
                f"this stability check was calibrated with other weights of {self.spec or 'it'} "
                f"(digest {self.model_fingerprint}, now {model_fingerprint}); calibrate it again"
            )


def _canonical(spec: str | None) -> str | None:
    if spec is None:
        return None
    try:
        return str(parse(spec))
    except SpecError:  # two models side by side, or a name of the user's own
        return spec
