"""Which score accepts most under one conditional guarantee, and how far is each guarantee from an oracle?

    python docs/measured/recipes/trust_scores.py RUNS [--splits 200] [--figure MODEL/CORPUS/SCHEME]

RUNS holds run folders MODEL/CORPUS/SCHEME, made by `quantdrift run MODEL@SCHEME --data CORPUS -k 50`. Half of the
inputs, drawn at random, is tested; the other half calibrates, or, for a score that is fitted, a quarter is fitted on
and a quarter calibrates. The documents are embedded once more, for the distances between them, and kept in
MODEL/CORPUS/documents.npy. Writes docs/measured/tables/trust-scores.csv (runs that are in it are not tried again), and
prints the tables of docs/measured/trust-scores.md. With --figure it writes the figure of docs/explained/trust.md and
its data instead.
"""

import argparse
import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from quantdrift.asking.opening import load_searching
from quantdrift.data.labelled import read_folder
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.report import figures
from quantdrift.runs.folder import Run, read_run
from quantdrift.statistics import conformal, selective
from quantdrift.statistics.estimates import at_most
from quantdrift.trust.certify import ALPHAS, random_splits

DOCS = Path(__file__).parents[2]
TABLES = DOCS / "measured" / "tables"
CHOSEN_ON = {"xquad_en", "banking77"}
ITEMS = 10
"""First items of each input that scores look at."""
NEAR = 5
"""Of these, the ones whose shifts are fitted."""
FEWER_SPLITS = 20
"""For boosting, which is slow."""

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


# --- what is known of each input ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inputs:
    """Of each input, its first ten items of the candidate, NaN where there are fewer.

    Attributes:
        scores: the candidate's, best first.
        before: the reference's, of the same items.
        apart: distance of the vector of each item from that of the first, at full precision.
        length: characters of the text.
        own: other confidences of the candidate that are stored, by name.
        seen: gap, changes and S, as `certify` sees them.
    """

    scores: Floats
    before: Floats
    apart: Floats
    length: Floats
    own: Mapping[str, Floats]
    seen: conformal.Observed

    @property
    def gap(self) -> Floats:
        """First minus second score."""
        return self.seen.confidence

    @property
    def behind(self) -> Floats:
        """How far the other items are behind the first, [n_inputs, 9]."""
        return self.scores[:, :1] - self.scores[:, 1:]


def read_inputs(place: Path) -> Inputs:
    """Read what is known of each input of a run."""
    run = read_run(place)
    evidence = run.evidence()
    top, dataset = evidence.candidate_top, read_folder(Path(run.record["data"]["path"]))
    scores, before = (np.full((evidence.n_inputs, ITEMS), np.nan) for _ in range(2))
    width = min(ITEMS, evidence.depth)
    scores[:, :width], before[:, :width] = top.candidate_scores[:, :width], top.reference_scores[:, :width]
    items = np.zeros((evidence.n_inputs, ITEMS), dtype=np.int64)
    items[:, :width] = top.items[:, :width]
    if isinstance(dataset, RetrievalDataset):
        texts = dict(zip(dataset.query_ids, dataset.queries, strict=True))
        vectors = _documents(run, dataset)
    else:
        texts = dict(zip(dataset.test.ids, dataset.test.inputs, strict=True))
        probe = run.probe()
        assert probe is not None  # an embedding model's classes are read by one
        vectors = dict(zip(probe.classes, probe.weight, strict=True))
    of_items = np.stack([vectors[name] for name in evidence.item_ids.tolist()])
    apart = np.stack([np.linalg.norm(of_items[row] - of_items[row[0]], axis=1) for row in items])
    more = evidence.confidence
    return Inputs(
        scores=scores,
        before=before,
        apart=np.where(np.isnan(scores), np.nan, apart),
        length=np.array([len(texts[name]) for name in evidence.input_ids.tolist()], dtype=np.float64),
        own={} if more is None else {"msp": more.msp, "entropy": -more.entropy},
        seen=conformal.observe(evidence, "S"),
    )


def _documents(run: Run, dataset: RetrievalDataset) -> dict[str, Floats]:
    """The documents' vectors of length one at full precision, kept beside the runs."""
    kept = run.path.parent / "documents.npy"
    if not kept.exists():
        model = load_searching(run.record["spec"].split("@")[0])
        np.save(kept, np.asarray(model.encode(list(dataset.documents), "document", 32)))
    vectors = np.load(kept).astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return dict(zip(dataset.document_ids, vectors / lengths, strict=True))


# --- scores: larger is surer ----------------------------------------------------------------------


def plain_scores(inputs: Inputs) -> dict[str, Floats]:
    """Scores that nothing is fitted for."""
    gap, behind = inputs.gap, inputs.behind
    third = np.where(np.isnan(behind[:, 1]), gap, behind[:, 1])
    after = behind[:, 1:5] - gap[:, None]
    slope = np.where(
        np.isnan(after[:, 0]), 1.0, np.nansum(after, axis=1) / np.maximum((~np.isnan(after)).sum(axis=1), 1)
    )
    scores = {"gap": gap, "gap + lead over the third / 4": gap + third / 4, "gap / distance": gap / inputs.apart[:, 1]}
    if not np.isnan(behind[:, 1]).all():  # of two classes these would be constant
        scores["gap / spread"] = gap / np.nanstd(inputs.scores, axis=1)
        scores["gap / first score"] = gap / np.abs(inputs.scores[:, 0])
        scores["gap / slope"] = gap / np.maximum(slope, 1e-9)
    return {**scores, **inputs.own}


def _normal(inputs: Inputs, rows: Rows) -> Floats:
    """Log probability that no item was ahead, full precision's leads being normal around a share of the candidate's."""
    behind, before = inputs.behind, inputs.before[:, :1] - inputs.before[:, 1:]
    x, y = behind[rows][:, :NEAR].ravel(), before[rows][:, :NEAR].ravel()
    x, y = x[~np.isnan(x)], y[~np.isnan(x)]
    share = (x @ y) / (x @ x)
    return np.asarray(np.nansum(log_ndtr(share * behind / np.std(y - share * x)), axis=1))


def _features(inputs: Inputs) -> Floats:
    gap, behind = inputs.gap, inputs.behind
    third = np.where(np.isnan(behind[:, 1]), gap, behind[:, 1])
    close = [np.nansum(behind < factor * np.median(gap), axis=1) for factor in (0.5, 2)]
    logs = [np.log(values + 1e-6) for values in (gap, third, inputs.apart[:, 1], inputs.length)]
    return np.column_stack([gap, third, inputs.scores[:, 0], np.nanstd(inputs.scores, axis=1), *close, *logs])


def _logistic(inputs: Inputs, rows: Rows) -> Floats:
    changed, features = inputs.seen.flipped[rows], _features(inputs)
    if not changed.any() or changed.all():
        return inputs.gap
    mean, spread = features[rows].mean(axis=0), features[rows].std(axis=0) + 1e-9
    scaled = (features - mean) / spread
    return -np.asarray(LogisticRegression(max_iter=100).fit(scaled[rows], changed).decision_function(scaled))


def _boosting(inputs: Inputs, rows: Rows) -> Floats:
    changed, features = inputs.seen.flipped[rows], _features(inputs)
    if not changed.any() or changed.all():
        return inputs.gap
    model = HistGradientBoostingClassifier(max_iter=60, learning_rate=0.08, max_leaf_nodes=8)
    found = -np.asarray(model.fit(features[rows], changed).decision_function(features))
    return found + 1e-9 * inputs.gap  # of equal leaves the larger gap is surer


FITTED: Mapping[str, Callable[[Inputs, Rows], Floats]] = {
    "normal shifts": _normal,
    "logistic": _logistic,
    "boosting": _boosting,
    "gap, a quarter calibrates": lambda inputs, _: inputs.gap,
}


def learned_elsewhere(place: Path, inputs: Inputs) -> dict[str, Floats]:
    """A logistic regression on two leads and a distance, fitted on the corpus that scores are chosen on."""
    read_as = "banking77" if inputs.own else "xquad_en"
    others = [read_inputs(path.parent) for path in sorted(place.parents[1].glob(f"{read_as}/*/run.json"))]
    if place.parent.name in CHOSEN_ON or not others:
        return {}
    features, changed = np.vstack([_leads(other) for other in others]), [other.seen.flipped for other in others]
    mean, spread = features.mean(axis=0), features.std(axis=0)
    model = LogisticRegression(max_iter=200).fit((features - mean) / spread, np.concatenate(changed))
    return {"logistic, fitted on another corpus": -model.decision_function((_leads(inputs) - mean) / spread)}


def _leads(inputs: Inputs) -> Floats:
    gap, third = inputs.gap, inputs.behind[:, 1]
    leads = (gap, np.where(np.isnan(third), gap, third), inputs.apart[:, 1])
    return np.column_stack([np.log(values + 1e-6) for values in leads])


# --- trials ---------------------------------------------------------------------------------------


@cache
def _most(alpha: float, n: int) -> NDArray[np.int64]:
    """The most changes with which a threshold passes, for each number of accepted answers up to n."""
    passes, allowed = 1 - selective.CONFIDENCE, []
    changed = -1
    for accepted in range(n + 1):
        while changed + 1 < accepted and at_most(changed + 1, accepted, alpha) <= passes:
            changed += 1
        allowed.append(changed)
    return np.array(allowed)


def _looked_up(count: Any, n: Any, share: float) -> Any:
    """`at_most`, 0 or 1 by whether it passes: all splits ask for the same tails."""
    largest = 1 << int(np.max(n)).bit_length()
    return np.where(count <= _most(share, largest)[n], 0.0, 1.0)


selective.at_most = _looked_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A score, under a guarantee, in one split at one level."""

    accepted: float
    changed: float


def tried(
    inputs: Inputs, levels: Sequence[float], n_splits: int, *, plain: Mapping[str, Floats], fits: bool = True
) -> dict[tuple[str, str], list[list[Tried]]]:
    """Try the plain scores, and those that are fitted: by guarantee and score, for each split the levels."""
    changed, gap = inputs.seen.flipped, inputs.gap
    values = inputs.seen.values
    assert values is not None  # it is of S
    n_calibration, orders = random_splits(len(gap), 0.5, n_splits, 0)
    # the physical limit: whatever changed is less sure than all that did not
    plain = {**plain, "oracle": np.random.default_rng(1).random(len(gap)) + ~changed}
    results: dict[tuple[str, str], list[list[Tried]]] = {}
    for number, order in enumerate(orders):
        calibrating, tested = order[:n_calibration], order[n_calibration:]
        fitting, rest = calibrating[: n_calibration // 2], calibrating[n_calibration // 2 :]
        joint = {
            "S": lambda level, of=calibrating: gap >= conformal.split_conformal_threshold(values[of], level),
            "gap": lambda level, of=calibrating: gap > conformal.generic_threshold(gap[of], changed[of], level),
        }
        fitted = {
            name: (fit(inputs, fitting), rest)
            for name, fit in (FITTED if fits else {}).items()
            if name != "boosting" or number < FEWER_SPLITS
        }
        conditional = {
            name: partial(_above, score, changed, of)
            for name, (score, of) in ({name: (score, calibrating) for name, score in plain.items()} | fitted).items()
        }
        for guarantee, accepting in (("joint", joint), ("conditional", conditional)):
            for name, accepts in accepting.items():
                trials = [_tried(accepts(level)[tested], changed[tested]) for level in levels]
                results.setdefault((guarantee, name), []).append(trials)
    return results


def _above(score: Floats, changed: NDArray[np.bool_], of: Rows, level: float) -> NDArray[np.bool_]:
    return np.asarray(score > selective.selective_threshold(score[of], changed[of], level))


def _tried(accepted: NDArray[np.bool_], changed: NDArray[np.bool_]) -> Tried:
    n = int(accepted.sum())
    return Tried(accepted=n / len(accepted), changed=float(changed[accepted].mean()) if n else 0.0)


# --- tables ---------------------------------------------------------------------------------------

Row = dict[str, str]


def rows_of(place: Path, n_splits: int) -> Iterator[Row]:
    """Yield the rows of a run."""
    inputs = read_inputs(place)
    *_, model, data, scheme = place.parts
    about = {
        "model": model,
        "data": data,
        "read_as": "classes" if inputs.own else "search",
        "scheme": scheme,
        "inputs": str(len(inputs.gap)),
        "changed_percent": f"{100 * inputs.seen.flipped.mean():.1f}",
    }
    plain = {**plain_scores(inputs), **learned_elsewhere(place, inputs)}
    for (guarantee, name), splits in tried(inputs, ALPHAS, n_splits, plain=plain).items():
        row = {**about, "guarantee": guarantee, "score": name}
        for at, level in enumerate(ALPHAS):
            here = [trials[at] for trials in splits]
            some = [one.changed for one in here if one.accepted]
            row[f"accepted_{level:g}"] = f"{100 * np.mean([one.accepted for one in here]):.1f}"
            row[f"changed_of_those_{level:g}"] = f"{100 * np.mean(some):.2f}" if some else ""
            row[f"splits_above_{level:g}"] = f"{100 * np.mean([one.changed > level for one in here]):.1f}"
        yield row


def differences(rows: Iterable[Row]) -> str:
    """How much more each score accepts than the gap, in points: the mean, the least and the most over runs."""
    runs: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        if row["guarantee"] == "conditional":
            runs.setdefault((row["model"], row["data"], row["scheme"]), {})[row["score"]] = row
    names = dict.fromkeys(name for of in runs.values() for name in of if name != "gap")
    lines = []
    for name in names:
        cells = []
        for part in ("search", "classes"):
            for level in ALPHAS[1:]:
                key = f"accepted_{level:g}"
                more = [
                    float(of[name][key]) - float(of["gap"][key])
                    for of in runs.values()
                    if name in of and of["gap"]["read_as"] == part
                ]
                cells.append(f"{np.mean(more):+.1f} ({min(more):+.1f} to {max(more):+.1f})" if more else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    head = ["score", *(f"{part}, {level:g}" for part in ("search", "classes") for level in ALPHAS[1:])]
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *lines])


def guarantees(rows: Iterable[Row]) -> str:
    """What each guarantee accepts, run by run; for the gap, the share of the accepted answers that changed, too."""
    shown = [("joint", "S"), ("joint", "gap"), ("conditional", "gap"), ("conditional", "oracle")]
    runs: dict[tuple[str, ...], dict[tuple[str, str], Row]] = {}
    for row in rows:
        key = (row["data"], row["model"], row["scheme"], row["inputs"], row["changed_percent"])
        runs.setdefault(key, {})[row["guarantee"], row["score"]] = row
    lines = []
    for (data, model, scheme, n, changed), of in runs.items():
        cells = []
        for promise in shown:
            accepted, wrong = (
                " / ".join(of[promise][f"{what}_{level:g}"] or "-" for level in ALPHAS)
                for what in ("accepted", "changed_of_those")
            )
            cells.append(f"{accepted} ({wrong})" if promise[1] == "gap" else accepted)
        lines.append(f"| {data}, {model}, {scheme}, {int(n):,} | {changed} % | " + " | ".join(cells) + " |")
    head = "| data | changed in all | S, joint | gap, joint | gap, conditional | oracle, conditional |"
    return "\n".join([head, "|---|---|---|---|---|---|", *lines])


# --- the figure -----------------------------------------------------------------------------------

LEVELS = tuple(round(0.01 * step, 2) for step in range(1, 31))
CURVES = {
    ("conditional", "oracle"): "oracle, conditional",
    ("conditional", "gap"): "gap, conditional",
    ("joint", "gap"): "gap, joint",
    ("joint", "S"): "S, joint",
}


def figure(place: Path, n_splits: int) -> None:
    """Write the figure of what is accepted at each level, and its data."""
    inputs = read_inputs(place)
    values = [
        {
            "rule": CURVES[promise],
            "level": level,
            "accepted": float(np.mean([trials[at].accepted for trials in splits])),
            "changed": float(np.mean([trials[at].changed for trials in splits])),
        }
        for promise, splits in tried(inputs, LEVELS, n_splits, plain={"gap": inputs.gap}, fits=False).items()
        for at, level in enumerate(LEVELS)
    ]
    rules, levels = list(CURVES.values()), {"domain": [0, LEVELS[-1]]}
    encoding = {
        "x": figures.amount("level", "level", axis=figures.PERCENT, scale=levels),
        "y": figures.amount("accepted", "answers accepted", axis=figures.PERCENT, scale={"domain": [0, 1]}),
        "color": figures.named("rule", sort=rules, scale={"domain": rules}),
    }
    line, _ = figures.marked("x", float(inputs.seen.flipped.mean()), "")
    layers = [figures.layer("line", encoding, strokeWidth=2.5), line]
    chart = figures.Figure(
        name="trust-coverage",
        title="Answers accepted, by level",
        caption="",
        spec=figures.spec_of(values, width=figures.WIDE, height=300, layer=layers),
    )
    figures.write_pictures([chart], DOCS / "images", "svg")
    write(
        TABLES / "trust-coverage.csv",
        [
            {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in row.items()}
            for row in values
        ],
    )


def write(place: Path, rows: Sequence[Row]) -> None:
    """Write a table."""
    with place.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Try the runs that are new, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--figure")
    asked = parser.parse_args()
    if asked.figure:
        figure(asked.runs / asked.figure, asked.splits)
        return
    table = TABLES / "trust-scores.csv"
    rows = list(csv.DictReader(table.open(encoding="utf-8"))) if table.exists() else []
    have = {(row["model"], row["data"], row["scheme"]) for row in rows}
    for place in sorted(path.parent for path in asked.runs.glob("*/*/*/run.json")):
        if place.parts[-3:] not in have:
            rows += rows_of(place, asked.splits)
            rows.sort(key=lambda row: (row["read_as"] == "classes", row["data"], row["model"], row["scheme"] == "W3"))
            write(table, rows)
    chosen = [row for row in rows if row["data"] in CHOSEN_ON]
    judged = [row for row in rows if row["data"] not in CHOSEN_ON]
    print(differences(chosen), differences(judged), guarantees(rows), sep="\n\n")


if __name__ == "__main__":
    main()
