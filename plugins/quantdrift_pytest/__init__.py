"""quantdrift inside pytest: a test that fails when quantization changes too many answers.

    from quantdrift_pytest import assert_drift

    def test_drift():
        assert_drift("minilm@W4-rtn", data="data/faq", flip=0.25)

pytest loads this package in every session, so heavy imports wait until a test needs them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quantdrift_pytest.assertion import Drifts, assert_drift
    from quantdrift_pytest.drift import Drift, UnderpoweredWarning

__all__ = ["Drift", "Drifts", "UnderpoweredWarning", "assert_drift"]

_MODULES = {"Drift": "drift", "Drifts": "assertion", "UnderpoweredWarning": "drift", "assert_drift": "assertion"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'quantdrift_pytest' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 -- a session without drift has no use for it

    return getattr(import_module(f"quantdrift_pytest.{_MODULES[name]}"), name)
