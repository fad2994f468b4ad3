"""Cuts of corpora in BEIR's layout, small enough for two cores: `python corpora.py FROM TO [FACTOR|small]`.

The small ones are for an encoder of 110 million parameters.
"""

import json
import random
import sys
from pathlib import Path

CUTS = {"cranfield": (300, 200), "scifact": (150, 200), "flickr8k_captions": (500, 500), "xquad_en": (120, 600)}
SMALL = {"cranfield": (100, 200), "scifact": (100, 200), "flickr8k_captions": (400, 400), "xquad_en": (100, 500)}
"""Documents that are drawn, and then at most so many of the queries that have a relevant one among them."""


def rows(path: Path) -> list[dict[str, str]]:
    """Read the objects of a JSONL file."""
    return [json.loads(line) for line in path.open(encoding="utf-8")]


def cut(source: Path, target: Path, n_documents: int, n_queries: int) -> None:
    """Draw judged documents, and queries that have a relevant one among them, and write both with their labels."""
    rng = random.Random(0)
    labels = [line.rstrip("\n").split("\t") for line in (source / "qrels/test.tsv").open(encoding="utf-8")][1:]
    judged = sorted({label[1] for label in labels})
    documents = set(rng.sample(judged, min(n_documents, len(judged))))
    labels = [label for label in labels if label[1] in documents]
    asked = sorted({label[0] for label in labels})
    asked = set(rng.sample(asked, min(n_queries, len(asked))))
    labels = [label for label in labels if label[0] in asked]
    (target / "qrels").mkdir(parents=True)
    for name, kept in (("corpus", documents), ("queries", asked)):
        lines = [json.dumps(row, ensure_ascii=False) for row in rows(source / f"{name}.jsonl") if row["_id"] in kept]
        (target / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    head = [["query-id", "corpus-id", "score"]]
    (target / "qrels/test.tsv").write_text("\n".join("\t".join(label) for label in head + labels) + "\n")
    print(f"{target.name}: {len(documents)} documents, {len(asked)} queries, {len(labels)} labels")


if __name__ == "__main__":
    cuts, more = CUTS, sys.argv[3:]
    if more == ["small"]:
        cuts, more = SMALL, []
    factor = int(more[0]) if more else 1
    for name, sizes in cuts.items():
        cut(Path(sys.argv[1]) / name, Path(sys.argv[2]) / name, *(factor * size for size in sizes))
