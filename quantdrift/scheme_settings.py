"""Which settings (`+KEY=VALUE`) a scheme takes, known without what quantizes it."""

from __future__ import annotations

from quantdrift.components import CALIBRATED
from quantdrift.errors import UnsupportedError
from quantdrift.spec import Scheme

__all__ = ["refuse_settings", "settings_taken"]

_OPTIONS = {
    "rtn": (),
    "adaround": (),
    "awq": ("backend", "grid"),
    "gptq": ("backend", "grid"),
    "gptq_ao": ("backend", "grid"),
    "hqq": ("backend",),
}
"""Settings that a method itself takes; `calib` and `seed` are the calibration's."""
_OF_CRITERIA = ("allocation", "queries", "seed", "solver", "units", "widths")
"""Settings of mixed precision."""
_OF_FILES = ("allocation", "widths")
"""Those that a stored allocation leaves open."""
_OF_MODELS = ("head",)
"""Settings of which layers there are, whatever quantizes them."""


def settings_taken(scheme: Scheme) -> set[str]:
    """Settings that the method and its calibration take."""
    calibrated = scheme.quantizer in CALIBRATED or scheme.activation_bits is not None
    return {*_OPTIONS[scheme.quantizer], *(("calib", "seed") if calibrated else ())}


def refuse_settings(scheme: Scheme) -> None:
    """Refuse a setting that would have no effect.

    Raises:
        UnsupportedError: names the setting, and says what takes it.
    """
    takes = settings_taken(scheme)
    stored = scheme.option("allocation")
    if scheme.criterion is not None:
        takes |= set(_OF_CRITERIA if stored is None else _OF_FILES)
    for key, _ in scheme.options:
        if key in takes or key in _OF_MODELS:
            continue
        if stored is not None and scheme.criterion is not None and key in _OF_CRITERIA:
            raise UnsupportedError(
                f"+{key}= has no effect on {scheme}: its widths are those of {stored}. Leave it "
                "out, or choose widths anew (quantdrift allocate)"
            )
        if key in _OF_CRITERIA and key != "seed":
            raise UnsupportedError(
                f"+{key}= is a setting of mixed precision, and {scheme} has one width; add a "
                f"criterion, e.g. W3.5-{scheme.quantizer}+gap+{key}=..., or leave it out"
            )
        others = f"it takes {', '.join(sorted(takes))}" if takes else "it takes no setting"
        raise UnsupportedError(
            f"+{key}= has no effect on {scheme.quantizer}: {others}. Leave it out"
        )
