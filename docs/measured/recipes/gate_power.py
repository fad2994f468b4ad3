"""How often the default rules of the gate alarm, rightly and wrongly, beside a rule on the mean.

    python docs/measured/recipes/gate_power.py RUNS [--samples 400] [--sizes 100,300,1000]

RUNS holds one folder per corpus, and each of these the run folders named below. Inputs are drawn
with replacement from those of a corpus, the same ones for baseline and run. Prints the tables of
docs/measured/results.md.

Without any change are: the same candidate run with another batch size; and two candidates that
differ by the calibration sample only, where baseline and run change places at random, input by
input, so that neither can be worse. The rule on the mean fails where nDCG@10 drops by more than a
point.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantdrift.gate.baseline import Snapshot
from quantdrift.gate.judge import Matched, decide, judge_change, snapshot_for, verdict_of
from quantdrift.gate.result import ALPHA
from quantdrift.gate.rules import Rule, default_rules
from quantdrift.gate.target import target_of_run
from quantdrift.runs.folder import read_run

POINT = 0.01
MEAN = "ndcg@10"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A baseline and a run; `exchanged` if they change places at random."""

    name: str
    baseline: str
    run: str
    changed: bool
    exchanged: bool = False


CASES = (
    Case(name="another batch size", baseline="W4-rtn", run="W4-rtn-batch", changed=False),
    Case(name="another calibration sample", baseline="W4-gptq", run="W4-gptq+seed=1", changed=False, exchanged=True),
    Case(name="groups of 64 to channels", baseline="W4-g64-rtn", run="W4-channel-rtn", changed=True),
    Case(name="W4-gptq to W4-rtn", baseline="W4-gptq", run="W4-rtn", changed=True),
    Case(name="W4-rtn to W3-rtn", baseline="W4-rtn", run="W3-rtn", changed=True),
)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--sizes", default="100,300,1000")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    sizes = [int(size) for size in asked.sizes.split(",")]
    head = ["corpus", "what changed", "flip@1", "inputs", "pass", "fail", "underpowered", "mean rule"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head), flush=True)
    for corpus in sorted(path for path in asked.runs.iterdir() if path.is_dir()):
        for case in CASES:
            places = [corpus / name for name in (case.baseline, case.run)]
            if all((place / "run.json").is_file() for place in places):
                for row in _rows(case, places, sizes, asked.samples, asked.seed):
                    print(f"| {corpus.name} | " + " | ".join(row) + " |", flush=True)


def _rows(case: Case, places: Sequence[Path], sizes: Sequence[int], samples: int, seed: int) -> Iterator[list[str]]:
    targets = [target_of_run(read_run(place)) for place in places]
    rules = default_rules(targets[0])
    before, now = (snapshot_for(target, rules) for target in targets)
    flips = [float(side.values["flip@1"].mean()) for side in (before, now)]
    for size in sizes:
        counts = {"pass": 0, "fail": 0, "underpowered": 0}
        alarms = 0
        rng = np.random.default_rng([seed, size])
        for _ in range(samples):
            pair = _drawn(before, now, size, exchanged=case.exchanged, rng=rng)
            counts[_verdict(rules, *pair)] += 1
            alarms += np.nanmean(pair[1].values[MEAN] - pair[0].values[MEAN]) < -POINT
        shares = [f"{100 * counts[verdict] / samples:.1f} %" for verdict in counts]
        moved = f"{100 * flips[0]:.1f} to {100 * flips[1]:.1f} %"
        yield [case.name, moved, f"{size:,}", *shares, f"{100 * alarms / samples:.1f} %"]


def _verdict(rules: Sequence[Rule], before: Snapshot, now: Snapshot) -> str:
    matched = Matched(now=now, before=before, differs=(), notes=(), n_answers_changed=0)
    judgements = decide([judge_change(rule, matched, None, alpha=ALPHA) for rule in rules], alpha=ALPHA)
    return verdict_of([judged.outcome for judged in judgements])


def _drawn(
    before: Snapshot, now: Snapshot, size: int, *, exchanged: bool, rng: np.random.Generator
) -> tuple[Snapshot, Snapshot]:
    rows = rng.integers(0, before.n_inputs, size)
    swapped = rng.random(size) < 1 / 2 if exchanged else np.zeros(size, dtype=np.bool_)
    return (_chosen(before, now, rows, swapped), _chosen(now, before, rows, swapped))


def _chosen(snapshot: Snapshot, other: Snapshot, rows: NDArray[np.int64], swapped: NDArray[np.bool_]) -> Snapshot:
    return Snapshot(
        identity=snapshot.identity,
        input_ids=tuple(str(place) for place in range(len(rows))),
        answers=("-",) * len(rows),
        values={
            name: np.where(swapped, other.values[name][rows], snapshot.values[name][rows]) for name in snapshot.values
        },
    )


if __name__ == "__main__":
    main()
