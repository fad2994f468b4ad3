"""Two encoders side by side: `python two_encoders.py TABLE.csv STUDY...`, of finished studies of two-encoders.yaml.

Writes a row for each corpus and scheme that both models have; other rows stay as they were.
"""

import csv
import json
import sys
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from quantdrift.spec.grammar import parse_scheme

MODELS = ("minilm", "mpnet")
COLUMNS = ("flip@1", "separation", "relevant first answers lost", "change of nDCG@10")
HEAD = ["corpus", "scheme", *(f"{model} {column}" for model in MODELS for column in COLUMNS)]


def cells(metrics: dict[str, Any]) -> list[str]:
    """One model's part of a row."""
    flips, lost, mean = metrics["flip@1"], metrics["gold_lost@1"], metrics["change.ndcg@10"]
    apart = metrics.get("separation") or {"value": None}
    percent = [f"{100 * flips[name]:.1f}" for name in ("value", "low", "high")]
    change = [f"{mean[name]:+.4f}" for name in ("value", "low", "high")]
    return [
        "{} % ({} to {})".format(*percent),
        "" if apart["value"] is None else f"{apart['value']:.2f}",
        f"{100 * lost['value']:.1f} %",
        "{} ({} to {})".format(*change),
    ]


def main(table: Path, studies: list[Path]) -> None:
    """Write the table, in the order of the study's file."""
    asked = yaml.safe_load((Path(__file__).parent / "two-encoders.yaml").read_text(encoding="utf-8"))["schemes"]
    short = {str(parse_scheme(scheme)): scheme for scheme in asked}
    with table.open(encoding="utf-8", newline="") as file:
        rows = {(row["corpus"], row["scheme"]): list(row.values())[2:] for row in csv.DictReader(file)}
    found = defaultdict[tuple[str, str], dict[str, list[str]]](dict)
    for path in (path for study in studies for path in sorted(study.rglob("run.json"))):
        run = json.loads(path.read_text(encoding="utf-8"))
        model, _, scheme = run["spec"].partition("@")
        if scheme in short:
            found[run["data"]["name"], short[scheme]][model] = cells(run["metrics"])
    rows |= {key: [*row["minilm"], *row["mpnet"]] for key, row in found.items() if set(row) == set(MODELS)}
    corpora = dict.fromkeys(corpus for corpus, _ in rows)
    lines = [[*key, *rows[key]] for key in product(corpora, asked) if key in rows]
    with table.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEAD, *lines])


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
