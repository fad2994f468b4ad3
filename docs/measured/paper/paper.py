"""The page on the paper, docs/measured/paper.md, and its tables: `python docs/measured/paper/paper.py` writes them.

comparisons.csv holds what the paper compares: two quantities, its figures for them (rows or models that say the same
are several pairs), and what takes their place in the offline variant of a suite. measure.py writes offline.csv, what
came out there. Whether both agree is decided here, by one rule; a comparison that could not fail, whatever the models,
says why under `certain`, and is no agreement.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import isnan
from pathlib import Path

HERE = Path(__file__).parent
COMPARISONS, OFFLINE, TEMPLATE = (HERE / name for name in ("comparisons.csv", "offline.csv", "page.template"))
PAGE, TABLE = HERE.parent / "paper.md", HERE.parent / "tables" / "paper.csv"
WORDS = ("order", "direction", "no", "cannot fail", "not measured")
Row = Mapping[str, str]


def agrees(compared: Sequence[tuple[float, float, float, float] | None]) -> str:
    """Say in one word whether comparisons of the paper came out here.

    Each is the paper's difference, ours, and the ends of our interval; None if it was not measured. "order" if all
    that were measured have the paper's sign and an interval without 0; "direction" if all have its sign, also without
    an interval; "no" if one
    has not, also where there is no difference; "not measured" if none was measured.
    """
    measured = [one for one in compared if one is not None]
    if not measured:
        return "not measured"
    if not all(paper * ours > 0 for paper, ours, _, _ in measured):
        return "no"
    return "order" if all(low > 0 or high < 0 for _, _, low, high in measured) else "direction"


def words_of(group: Sequence[tuple[Row, tuple[float, float, float, float] | None]]) -> str:
    """Say in one word what some comparisons came to; those that cannot fail count where there is no other."""
    open_ones = [one for row, one in group if not row["certain"]]
    return agrees(open_ones) if open_ones or all(one is None for _, one in group) else "cannot fail"


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


def compared(row: Row, offline: Mapping[tuple[str, str], Row]) -> tuple[float, float, float, float] | None:
    """A comparison as the rule takes it."""
    first, second = pairs_of(row)[0]
    found = offline.get((row["suite"], row["here"]))
    if found is None:
        return None
    ours, low, high = (float(found[k]) for k in ("difference", "low", "high"))
    return None if isnan(ours) else (first - second, ours, low, high)


def shown(row: Row, found: Row | None, word: str) -> dict[str, str]:
    """A row of the table: a comparison in words and figures."""
    here = difference = n = ""
    if found is not None:
        times = 100 if row["unit"] in {"%", "points"} else 1
        first, second, step, low, high = (
            f"{times * float(found[k]):{'.1f' if times > 1 else '.3g'}}"
            for k in ("first", "second", "difference", "low", "high")
        )
        between = "no interval" if isnan(float(found["low"])) else f"{low} to {high}"
        here, difference, n = f"{first} and {second}", f"{step} ({between})", found["n"]
    paper = "; ".join(f"{a:g} and {b:g}" for a, b in pairs_of(row))
    unit = f" ({row['unit']})" if row["unit"] else ""
    what = f"{row['of']}{unit}: {row['first']} {'>' if '>' in row['paper'] else '<'} {row['second']}"
    keys = (
        "part",
        "table",
        "comparison",
        "suite",
        "the paper",
        "here",
        "difference here (95 % interval)",
        "n",
        "agrees",
    )
    suite = row["suite"] if row["here"] else ""
    return dict(zip(keys, (row["part"], row["table"], what, suite, paper, here, difference, n, word), strict=True))


def summary(rows: Iterable[tuple[Row, tuple[float, float, float, float] | None]]) -> str:
    """The page's table: a word for every table of the paper, and how many of its comparisons have which."""
    lines = [f"| table | suite | agrees | {' | '.join(WORDS)} |", "|---" * (3 + len(WORDS)) + "|"]
    for (_, table), members in groupby(rows, lambda item: (item[0]["part"], item[0]["table"])):
        group = list(members)
        counts = Counter(words_of([one]) for one in group)
        suites = ", ".join(dict.fromkeys(row["suite"] for row, one in group if row["here"])) or "none"
        figures = " | ".join(str(counts[word] or "") for word in WORDS)
        lines.append(f"| {table} | {suites} | **{words_of(group)}** | {figures} |")
    return "\n".join(lines)


def made() -> dict[Path, str]:
    """The page and its table, as they should be."""
    offline = {(row["suite"], row["here"]): row for row in rows_in(OFFLINE)}
    rows = [(row, compared(row, offline)) for row in rows_in(COMPARISONS)]
    words = Counter(words_of([each]) for each in rows)
    counts = ", ".join(f"**{word}** {words[word]}" for word in WORDS)
    no = [one for row, one in rows if one is not None and words_of([(row, one)]) == "no"]
    turned = sum(ours * paper < 0 and (low > 0 or high < 0) for paper, ours, low, high in no)
    same = sum(low == high == 0 for _, _, low, high in no)
    counts += (
        f".\nOf the {len(no)} that are no, {turned} are shown the other way round, {same} have no difference at all"
    )
    table = [shown(row, offline.get((row["suite"], row["here"])), words_of([(row, one)])) for row, one in rows]
    page = TEMPLATE.read_text(encoding="utf-8")
    page = page.replace("{counts}", f"{len(rows)} comparisons: {counts}").replace("{summary}", summary(rows))
    return {PAGE: page, TABLE: written(table)}


def write_page() -> None:
    """Write the page and its table."""
    for place, text in made().items():
        place.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_page()
