"""What quantizing a retriever changes, and what quantizing a reranker behind it changes.

    python tests/benchmarks/reranking_drift.py scifact --schemes W8-rtn,W4-rtn,W3-rtn

The folder is in BEIR layout with qrels/train.tsv and qrels/test.tsv. The reranker is trained on the
train judgements the first time (small_reranker.py) and kept in the cache. The shortlist is MiniLM's
at full precision, the same for every scheme; only one of the two models is quantized at a time. Run
folders go below quantdrift-runs/reranking, and a table in Markdown to standard output. What was
finished is kept, so the same command goes on after an interruption.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from small_reranker import kept_at, trained

from quantdrift.datasets.retrieval import RetrievalDataset, read_beir_folder
from quantdrift.engine.inputs import Settings
from quantdrift.engine.run import run as run_pair
from quantdrift.engine.store import default_store
from quantdrift.finished.shortlist import read_shortlist
from quantdrift.progress import Terminal
from quantdrift.runs import Run
from quantdrift.spec import parse

RETRIEVER = "minilm"
SHOWN = {
    "flip@1": "{:.1%}",
    "noise_floor": "{:.1%}",
    "separation": "{:.3f}",
    "at_risk": "{:.1%}",
    "gold_lost@1": "{:.1%}",
    "reference.ndcg@10": "{:.4f}",
    "ndcg@10": "{:.4f}",
}


def some_of(dataset: RetrievalDataset, every: int) -> RetrievalDataset:
    """Every so many queries of a dataset, all of its documents."""
    kept = dataset.query_ids[::every]
    return replace(
        dataset, query_ids=kept, queries=dataset.queries[::every], qrels={query: dataset.qrels[query] for query in kept}
    )


def measure(data: Path, schemes: list[str], *, every: int, top: int, out: Path) -> list[Run]:
    """Runs of the retriever, then of the reranker on its shortlist, one per scheme.

    Args:
        data: folder in BEIR layout.
        schemes: as in a spec.
        every: of so many test queries one is taken.
        top: documents per query that are reranked.
        out: folder above the run folders.
    """
    reranker = trained(data, kept_at(data))
    dataset = some_of(read_beir_folder(data), every)
    common: dict[str, Any] = {"settings": Settings(), "store": default_store(), "progress": Terminal()}
    runs = []
    for scheme in schemes:
        place = out / f"{RETRIEVER}@{scheme}"
        runs.append(run_pair(parse(f"{RETRIEVER}@{scheme}"), dataset, out=place, **common))
    shortlist = read_shortlist(runs[0].path, dataset, top=top)
    rerank = partial(run_pair, shortlist=shortlist, **common)
    for scheme in schemes:
        place = out / f"reranker@{scheme}"
        runs.append(rerank(parse(f"{reranker}@{scheme}"), dataset, out=place))
    return runs


def row(run: Run) -> str:
    """A line of the table."""
    metrics: Mapping[str, Mapping[str, Any]] = run.record["metrics"]
    shown = []
    for name, form in SHOWN.items():
        entry = metrics[name]
        text = "-" if entry["value"] is None else form.format(entry["value"])
        if name in {"flip@1", "separation"} and entry.get("low") is not None:
            text += f" ({form.format(entry['low'])} to {form.format(entry['high'])})"
        shown.append(text.replace("%", " %"))
    what = "reranker" if "shortlist" in run.record["data"] else "retriever"
    scheme = run.record["spec"].rpartition("@")[2]
    return f"| {what} | {scheme} | " + " | ".join(shown) + " |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder in BEIR layout, with train judgements")
    parser.add_argument("--schemes", default="W8-rtn,W4-rtn,W3-rtn")
    parser.add_argument("--every", type=int, default=1, help="of so many queries one is taken")
    parser.add_argument("--top", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("quantdrift-runs/reranking"))
    given = parser.parse_args()
    found = measure(given.data, given.schemes.split(","), every=given.every, top=given.top, out=given.out)
    print("| quantized | scheme | " + " | ".join(SHOWN) + " |")
    print("|---|---|" + "---|" * len(SHOWN))
    for one in found:
        print(row(one))
