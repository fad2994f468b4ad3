"""The page on the paper, docs/measured/paper.md, and its tables: `python docs/measured/paper/paper.py` writes them.

comparisons.csv holds what the paper compares: two quantities, its figures for them (rows or models that say the same
are several pairs), and what takes their place in the offline variant of a suite. measure.py writes offline.csv, what
came out there. What each comparison came to is decided here, by one rule; one that could not fail, whatever the models,
says why under `certain`, and is not counted.
"""

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isnan
from pathlib import Path
from statistics import NormalDist
from textwrap import wrap

from quantdrift.statistics.verdicts import holm

HERE = Path(__file__).parent
COMPARISONS, OFFLINE, TEMPLATE = (HERE / name for name in ("comparisons.csv", "offline.csv", "page.template"))
OTHER = "mpnet"
"""The second encoder; what was measured with it is in offline-OTHER.csv."""
PAGE, TABLE = HERE.parent / "paper.md", HERE.parent / "tables" / "paper.csv"
WORDS = ("shown", "not shown", "tie", "reversed", "cannot fail", "not measured")
ALPHA = 0.05
_NORMAL = NormalDist()
Row = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A comparison that was measured: the paper's difference, ours, and the ends of our 95 % interval.

    Attributes:
        paper: the paper's difference.
        ours: ours.
        low: lower end of its interval; NaN where there is none.
        high: its upper end.
    """

    paper: float
    ours: float
    low: float
    high: float

    @property
    def tie(self) -> bool:
        """Whether both quantities are equal whatever the inputs: both are of the same layers."""
        return self.ours == self.low == self.high == 0

    @property
    def p(self) -> float:
        """Two-sided p of no difference, from the end of the interval that is nearer to 0; 1 where there is none.

        Below 0.05 where the interval leaves 0 out. Beyond that, its tail is taken for that of a normal distribution.
        """
        error = (self.ours - (self.low if self.ours > 0 else self.high)) / _NORMAL.inv_cdf(0.975)
        return 1.0 if isnan(error) or not error else 2 * _NORMAL.cdf(-abs(self.ours / error))


def word_of(one: Compared | None, p: float | None, *, certain: str = "") -> str:
    """Say in one of the words what a comparison came to, by its p among all of the page (Holm)."""
    if one is None:
        return "not measured"
    if certain:
        return "cannot fail"
    if one.tie:
        return "tie"
    if p is None or p >= ALPHA:
        return "not shown"
    return "shown" if one.paper * one.ours > 0 else "reversed"


def word_of_table(words: Sequence[str]) -> str:
    """Say in one word what a table came to: reversed if a comparison is, shown if all are that could fail."""
    if "reversed" in words:
        return "reversed"
    told = {word for word in words if word not in {"cannot fail", "not measured"}}
    if len(told) > 1:
        return "not shown"
    return next(iter(told), "cannot fail" if "cannot fail" in words else "not measured")


def judged(rows: Sequence[tuple[Row, Compared | None]]) -> list[str]:
    """Say what each comparison came to; those that could have come out either way share one error (Holm)."""
    p_values = holm([one.p if one and not (row["certain"] or one.tie) else None for row, one in rows])
    return [word_of(one, p, certain=row["certain"]) for (row, one), p in zip(rows, p_values, strict=True)]


def rows_in(place: Path) -> list[dict[str, str]]:
    """The rows of a file; none if it is not there."""
    return list(csv.DictReader(io.StringIO(place.read_text(encoding="utf-8")))) if place.exists() else []


def written(rows: Sequence[Row]) -> str:
    """Rows as a file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def pairs_of(row: Row) -> list[tuple[float, float]]:
    """The paper's figures, first and second; all pairs in one direction, which is that of the comparison."""
    pairs = [(float(a), float(b)) for a, b in (pair.replace(">", "<").split("<") for pair in row["paper"].split())]
    signs = {">" if a > b else "<" if a < b else "=" for a, b in pairs}
    if len(signs) != 1 or any(sign not in pair for sign in signs for pair in row["paper"].split()):
        raise ValueError(f"{row['table']}: expected pairs in one direction; got {row['paper']}")
    return pairs


def compared(row: Row, offline: Mapping[tuple[str, str], Row]) -> Compared | None:
    """A comparison as the rule takes it; None if it was not measured."""
    first, second = pairs_of(row)[0]
    found = offline.get((row["suite"], row["here"]))
    if found is None:
        return None
    ours, low, high = (float(found[k]) for k in ("difference", "low", "high"))
    return None if isnan(ours) else Compared(paper=first - second, ours=ours, low=low, high=high)


def figures(row: Row, found: Row | None) -> tuple[str, str, str]:
    """Both quantities, their difference with its interval, and the number of inputs; empty where not measured."""
    if found is None:
        return "", "", ""
    times = 100 if row["unit"] in {"%", "points"} else 1
    first, second, step, low, high = (
        f"{times * float(found[k]):{'.1f' if times > 1 else '.3g'}}"
        for k in ("first", "second", "difference", "low", "high")
    )
    between = "no interval" if isnan(float(found["low"])) else f"{low} to {high}"
    return f"{first} and {second}", f"{step} ({between})", found["n"]


def shown(row: Row, found: Sequence[Row | None], words: Sequence[str]) -> dict[str, str]:
    """A row of the table: a comparison in words and figures, here and with the other encoder."""
    paper = "; ".join(f"{a:g} and {b:g}" for a, b in pairs_of(row))
    unit = f" ({row['unit']})" if row["unit"] else ""
    what = f"{row['of']}{unit}: {row['first']} {'>' if '>' in row['paper'] else '<'} {row['second']}"
    line = {
        "part": row["part"],
        "table": row["table"],
        "comparison": what,
        "suite": row["suite"] if row["here"] else "",
        "the paper": paper,
    }
    for who, one, word in zip(("here", OTHER), found, words, strict=True):
        both, difference, n = figures(row, one)
        count, out = ("n", "came out") if who == "here" else (f"{who} n", f"{who} came out")
        line |= {who: both, f"difference {who} (95 % interval)": difference, count: n, out: word}
    return line


def summary(rows: Sequence[Row], words: Sequence[str], others: Sequence[str]) -> str:
    """The page's table: a word for every table of the paper, how many of its comparisons have which, and with OTHER."""
    lines = [f"| table | suite | came out | {' | '.join(WORDS)} | with {OTHER} |", "|---" * (4 + len(WORDS)) + "|"]
    every = zip(rows, words, others, strict=True)
    for (_, table), members in groupby(every, lambda item: (item[0]["part"], item[0]["table"])):
        group = list(members)
        counts, other = (Counter(item[column] for item in group) for column in (1, 2))
        suites = ", ".join(dict.fromkeys(row["suite"] for row, *_ in group if row["here"])) or "none"
        numbers = " | ".join(str(counts[word] or "") for word in WORDS)
        told = ", ".join(f"{other[word]} {word}" for word in WORDS[:-1] if other[word])
        word = word_of_table([word for _, word, _ in group])
        lines.append(f"| {table} | {suites} | **{word}** | {numbers} | {told} |")
    return "\n".join(lines)


def with_the_other(words: Sequence[str], others: Sequence[str]) -> str:
    """Say how the comparisons came out that were measured with the other encoder too."""
    both = [
        (one, other) for one, other in zip(words, others, strict=True) if other in {"shown", "not shown", "reversed"}
    ]
    counts, alike = Counter(other for _, other in both), sum(one == other for one, other in both)
    return (
        f"With {OTHER} (110 million parameters) {len(both)} of those that could fail were measured too: "
        f"{counts['shown']} are shown, {counts['not shown']} not shown and {counts['reversed']} reversed; {alike} come "
        "out as with MiniLM."
    )


def made() -> dict[Path, str]:
    """The page and its table, as they should be."""
    rows = rows_in(COMPARISONS)
    offline = [
        {(row["suite"], row["here"]): row for row in rows_in(place)}
        for place in (OFFLINE, OFFLINE.with_stem(f"{OFFLINE.stem}-{OTHER}"))
    ]
    every = judged([(row, compared(row, found)) for found in offline for row in rows])
    words, others = every[: len(rows)], every[len(rows) :]
    counts = Counter(words)
    could = sum(counts[word] for word in ("shown", "not shown", "reversed"))
    first = (
        f"**{counts['reversed']} of {could} comparisons are reversed**, of those that could have come out either way; "
        f"{counts['shown']} are shown in the paper's order, and {counts['not shown']} are not shown. Of all "
        f"{len(rows)}, {counts['tie']} are ties, {counts['cannot fail']} cannot fail and {counts['not measured']} were "
        f"not measured. {with_the_other(words, others)}"
    )
    table = [
        shown(row, [found.get((row["suite"], row["here"])) for found in offline], pair)
        for row, *pair in zip(rows, words, others, strict=True)
    ]
    page = TEMPLATE.read_text(encoding="utf-8")
    page = page.replace("{counts}", "\n".join(wrap(first, 118))).replace("{summary}", summary(rows, words, others))
    return {PAGE: page, TABLE: written(table)}


def write_page() -> None:
    """Write the page and its table."""
    for place, text in made().items():
        place.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_page()
