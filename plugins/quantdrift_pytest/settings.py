"""How a pair is measured, as a test may ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from quantdrift.errors import QuantDriftError, UnknownNameError

__all__ = ["SETTINGS", "Measuring", "read_settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """The settings of a measurement; those of `quantdrift run`.

    Attributes:
        k: ranks kept of either arm.
        batch_size: inputs per forward pass.
        noise_floor: whether to run the reference a second time.
        seed: of the order in which that is done.
        device: where models run; the best there is if not given.
        revision: of a hub model.
    """

    k: int = 200
    batch_size: int = 32
    noise_floor: bool = True
    seed: int = 0
    device: str | None = None
    revision: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


SETTINGS: Mapping[str, str] = {
    "k": "a whole number from 1",
    "batch_size": "a whole number from 1",
    "noise_floor": "True or False",
    "seed": "a whole number from 0",
    "device": "a name such as 'cpu'",
    "revision": "a branch or commit of a hub model",
}
"""Name to what it takes."""


def read_settings(given: Mapping[str, Any]) -> Measuring:
    """Settings by name, checked.

    Args:
        given: those that a test gave.

    Raises:
        UnknownNameError: there is no such setting; carries the nearest names.
        QuantDriftError: a value of another kind.
    """
    for name, value in given.items():
        if name not in SETTINGS:
            hint = f"(settings are {', '.join(SETTINGS)}; limits go to require or assert_drift)"
            raise UnknownNameError("setting", name, SETTINGS, hint=hint)
        if not _fits(name, value):
            raise QuantDriftError(f"the setting {name} is {SETTINGS[name]}; got {value!r}")
    return Measuring(**given)


def _fits(name: str, value: object) -> bool:
    kinds = {field.name: field.default for field in fields(Measuring)}
    default = kinds[name]
    if default is None:
        return value is None or isinstance(value, str)
    if isinstance(default, bool):
        return isinstance(value, bool)
    least = 0 if name == "seed" else 1
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
