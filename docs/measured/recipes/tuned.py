"""First answers that change with and without an option: `python tuned.py FOLDER WITHOUT WITH [CORPUS...]`, of cells.

For every corpus and pooled: queries, changes without and with it, the ratio with a 95 % interval from resampled queries
within corpora, how many are mended and new, and McNemar's exact p.
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantdrift.evidence.perturbation import flips
from quantdrift.runs.folder import find_runs
from quantdrift.statistics.paired import mcnemar_exact


def row(name: str, pairs: list[NDArray[np.bool_]]) -> str:
    """A row of the table, of bool [2, n_queries] for each corpus: changed without the option, and with it."""
    rng, both = np.random.default_rng(0), np.concatenate(pairs, axis=1)
    drawn = [pair[:, rng.integers(pair.shape[1], size=(4000, pair.shape[1]))].sum(axis=2) for pair in pairs]
    without, made = np.sum(drawn, axis=0)
    low, high = np.quantile(made / without, [0.025, 0.975])
    (before, after), test = both.sum(axis=1), mcnemar_exact(*both.astype(float))
    ratio = f"{after / before:.2f} ({low:.2f} to {high:.2f})"
    counts = f"{test.only_a}, {test.only_b}, {test.p_value:.1g}"
    return f"| {name} | {both.shape[1]} | {before} | {after} | {ratio} | {counts} |"


def main(folder: Path, schemes: list[str], corpora: list[str]) -> None:
    """Print the table."""
    changed: dict[str, dict[str, NDArray[np.bool_]]] = {}
    for run in find_runs([folder]):
        data, scheme = run.record["data"]["name"], run.record["spec"].split("@", 1)[1]
        if scheme in schemes and (not corpora or data in corpora):
            changed.setdefault(data, {})[scheme] = flips(run.evidence())
    pairs = {data: np.stack([of[scheme] for scheme in schemes]) for data, of in changed.items() if len(of) > 1}
    print(*(row(data, [pair]) for data, pair in pairs.items()), sep="\n")
    print(row("pooled", list(pairs.values())))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:4], sys.argv[4:])
