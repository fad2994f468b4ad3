"""An allocation against its rivals, as a table."""

from __future__ import annotations

from rich.table import Table

from quantdrift.allocation.record import Allocation
from quantdrift.console import Console
from quantdrift.display import clean
from quantdrift.engine.sensitivity.contest import Contest, Rival
from quantdrift.statistics import Estimate


def print_contest(out: Console, contest: Contest, allocation: Allocation) -> None:
    """Print what every rival changes, and whether one is better.

    Args:
        out: where.
        contest: the allocation first, then its rivals.
        allocation: in question.
    """
    out.print(f"\nOn {contest.n_queries} other queries, rounded to nearest (95 % intervals):")
    table = Table(box=None, pad_edge=False)
    for name in ("bits from", "bits", "other first answer", "more than this allocation"):
        table.add_column(name, justify="left" if name == "bits from" else "right")
    for rival in contest.rivals:
        table.add_row(
            clean(rival.name),
            f"{rival.bits_per_weight:.2f}",
            _percent(rival),
            "" if rival.difference is None else _points(rival),
        )
    out.print(table)
    out.print(_verdict(contest, allocation), soft_wrap=True)


def _verdict(contest: Contest, allocation: Allocation) -> str:
    better = contest.beaten_by
    if better:
        best = better[0]
        reached = best.difference and (best.difference.high or 0.0) >= 0
        chance = ", which could be chance" if reached else ""
        return (
            f"{allocation.criterion} did not win: {best.name} changes "
            f"{abs(100 * (_value(best.difference) or 0.0)):.1f} points fewer "
            f"({_points(best)}){chance}. "
            "Use another criterion, or measure on more queries"
        )
    tied = [rival.name for rival in contest.rivals[1:] if rival.difference and (rival.difference.low or 0.0) <= 0]
    if not tied:
        return f"{allocation.criterion} changes fewest answers, beyond chance against each rival"
    return (
        f"{allocation.criterion} changes fewest answers; {', '.join(tied)} could still be as good "
        f"(their intervals reach 0)"
    )


def _percent(rival: Rival) -> str:
    flips = rival.flips
    if flips.value is None or flips.low is None or flips.high is None:
        return "-"
    return f"{100 * flips.value:.1f} % ({100 * flips.low:.1f} to {100 * flips.high:.1f})"


def _points(rival: Rival) -> str:
    found = rival.difference
    if found is None or found.value is None or found.low is None or found.high is None:
        return "-"
    return f"{100 * found.value:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value
