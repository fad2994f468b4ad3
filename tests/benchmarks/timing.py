"""Two ways of doing one thing, timed in turn, so that a machine that slows down slows both."""

import statistics
import time
from collections.abc import Callable, Sequence


def in_turn(ours: Callable[[], object], other: Callable[[], object], rounds: int) -> list[float]:
    """Ratios ours / other of runs made in turn, after one run of each that does not count."""
    ours()
    other()
    ratios = []
    for _ in range(rounds):
        start = time.perf_counter()
        other()
        middle = time.perf_counter()
        ours()
        ratios.append((time.perf_counter() - middle) / (middle - start))
    return ratios


def report(name: str, ratios: Sequence[float], shape: str) -> None:
    """Print the median ratio and its spread."""
    print(
        f"\n{name}: {_shown(statistics.median(ratios))} "
        f"(min {_shown(min(ratios))}, max {_shown(max(ratios))}, {len(ratios)} rounds; {shape})"
    )


def _shown(ratio: float) -> str:
    """Two digits that say something, also of small ratios."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"
