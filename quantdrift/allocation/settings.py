"""What a scheme says of how its widths are chosen."""

from __future__ import annotations

from dataclasses import dataclass

from quantdrift.allocation.solving.solver import METHODS
from quantdrift.errors import SpecError
from quantdrift.grammar import error_at
from quantdrift.spec import Scheme

__all__ = ["DEFAULT_QUERIES", "DEPTH", "PreStepSettings", "settings_of"]

DEFAULT_QUERIES = 128
"""Calibration queries, as in the paper."""
DEPTH = 20
"""First documents of every query that are embedded again to compare allocations."""
UNITS = ("layer", "fused")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreStepSettings:
    """How widths are chosen.

    Attributes:
        n_queries: calibration queries wanted.
        seed: of their draw, and of the criterion `random`.
        solver: one of `solver.METHODS`.
        fused: whether layers that runtimes multiply at once share a width.
    """

    n_queries: int = DEFAULT_QUERIES
    seed: int = 0
    solver: str = METHODS[0]
    fused: bool = False


def settings_of(scheme: Scheme) -> PreStepSettings:
    """Read `+queries=`, `+seed=`, `+solver=` and `+units=` of a scheme.

    Raises:
        SpecError: one of them is not what it can be.
    """
    return PreStepSettings(
        n_queries=_whole(scheme, "queries", DEFAULT_QUERIES, least=1),
        seed=_whole(scheme, "seed", 0, least=0),
        solver=_one_of(scheme, "solver", METHODS),
        fused=_one_of(scheme, "units", UNITS) == "fused",
    )


def _whole(scheme: Scheme, key: str, default: int, *, least: int) -> int:
    given = scheme.option(key)
    if given is None:
        return default
    if not (given.isdecimal() and int(given) >= least):
        raise _complaint(scheme, key, given, f"a whole number, {least} or more")
    return int(given)


def _one_of(scheme: Scheme, key: str, known: tuple[str, ...]) -> str:
    given = scheme.option(key, known[0])
    if given not in known:
        raise _complaint(scheme, key, given, f"one of {', '.join(known)}")
    return given


def _complaint(scheme: Scheme, key: str, given: str, expected: str) -> SpecError:
    text = str(scheme)
    start = text.index(f"+{key}=") + len(key) + 2
    return error_at(text, start, start + len(given), f"unusable {key}", expected)
