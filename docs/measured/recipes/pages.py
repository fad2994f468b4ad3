"""Figures of README.md and of the tutorials: types the commands of tables/pages.csv again, and writes what they print.

    python docs/measured/recipes/pages.py FOLDER [PAGE ...]

A row names a page, a figure, and a command: what it prints as JSON has the figure at a key (a/b/0), or else in the
first line that begins so. FOLDER/PAGE is where the commands of the page were typed before: the folder that a tutorial
goes to, and for README.md one with `banking77` (its train.jsonl and test.jsonl as PolyAI published them).
"""

import csv
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "tables" / "pages.csv"


@cache
def printed(command: str, folder: Path) -> str:
    """What a command prints. A gate that fails prints as well, so no exit code is looked at."""
    return subprocess.run(command, shell=True, cwd=folder, stdout=subprocess.PIPE, text=True, check=False).stdout


def figure(text: str, key: str) -> str:
    """The figure at a key, to six digits where it is a number; or the line."""
    if not text.startswith("{"):
        return next(line for line in text.splitlines() if line.startswith(key))
    found: Any = json.loads(text)
    for part in key.split("/"):
        found = found[int(part) if isinstance(found, list) else part]
    return f"{found:.6g}" if isinstance(found, float) else str(found)


def main() -> None:
    """Write the figures of the pages that are named, or of all."""
    folder, *pages = sys.argv[1:]
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if not pages or row["page"] in pages:
            row["value"] = figure(printed(row["command"], Path(folder) / row["page"]), row["key"])
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
