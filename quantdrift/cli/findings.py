"""What a run was on and what it found, in plain sentences; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantdrift.metrics import headline_metrics
from quantdrift.runs import classifies

OF_CLASSES = (
    "flip@1",
    "noise_floor",
    "separation",
    "at_risk",
    "reference.accuracy",
    "accuracy",
    "change.accuracy",
    "gold_lost@1",
)
"""What is shown of a classification run; whatever lies deeper than the first class says little."""
_COVERAGE = ("coverage", "candidate.coverage")

Metrics = Mapping[str, Mapping[str, Any]]


def headlines(record: Mapping[str, Any]) -> list[str]:
    """The metric strings of a record that are shown first, in the order of the record.

    Args:
        record: the content of run.json.
    """
    metrics = record["metrics"]
    if not classifies(record):
        shown = {str(metric) for metric in headline_metrics()}
        return [name for name in metrics if name in shown]
    return [name for name in metrics if name in OF_CLASSES or name.split("@")[0] in _COVERAGE]


def data_line(record: Mapping[str, Any]) -> str:
    """How much data there was, and how it was read.

    Args:
        record: the content of run.json.
    """
    data = record["data"]
    if shortlist := data.get("shortlist"):
        top = record["settings"]["shortlist"]["top"]
        return (
            f"{data['n_queries']:,} queries, reranking {top:,} documents of {shortlist['path']}{_found_by(shortlist)}"
        )
    if not classifies(record):
        return f"{data['n_queries']:,} queries, {data['n_documents']:,} documents"
    reading = "the model's own logits"
    if record["settings"]["reading"] == "linear probe":
        kind = {"texts": "training texts", "images": "training images"}[data["inputs"]]
        reading = f"linear probe fitted on {data['n_train']:,} {kind}"
    before = record["metrics"]["reference.accuracy"]["value"]
    accuracy = "" if before is None else f" (accuracy {_percent(before)} at full precision)"
    return f"{data['n_inputs']:,} inputs, {data['n_classes']:,} classes, {reading}{accuracy}"


def _found_by(shortlist: Mapping[str, Any]) -> str:
    """The retriever; of a run of ours it is known, and that nothing was quantized."""
    if shortlist["from"] != "run":
        return ""
    return f" (found by {shortlist['retriever']} at full precision)"


def explain(record: Mapping[str, Any]) -> list[str]:
    """The finding in plain sentences.

    Args:
        record: the content of run.json.
    """
    metrics: Metrics = record["metrics"]
    classes = classifies(record)
    # what runs on a server can be any two models
    served = record.get("bits_per_weight", {}) is None
    lines = [*_changed(metrics, "class" if classes else "first answer", served=served)]
    lines += _accuracy(metrics) if classes else _ndcg(metrics)
    lines += _out_of_reach(record)
    risk = metrics.get("at_risk")
    if risk and risk["value"] is not None:
        lines.append(
            f"For {_percent(1 - risk['value'])} of the inputs the first answer leads by enough "
            f"to be safe from this {'difference' if served else 'quantization'} (separation ratio "
            "of 1 or more)."
        )
    return lines


def _changed(metrics: Metrics, what: str, *, served: bool) -> list[str]:
    flip, floor = metrics["flip@1"], metrics.get("noise_floor", {"value": None})
    if flip["value"] is None:
        return []
    changed = round(flip["value"] * flip["n"])
    noise = "."
    if floor["value"] is not None:
        noise = f"; noise alone changes {_percent(floor['value'])}."
    return [
        f"{changed:,} of {flip['n']:,} inputs ({_percent(flip['value'])}) have another {what} "
        f"than {'of the reference' if served else 'at full precision'}{noise}"
    ]


def _accuracy(metrics: Metrics) -> list[str]:
    change, lost = metrics.get("change.accuracy"), metrics.get("gold_lost@1")
    if not change or change["value"] is None:
        return []
    flip = metrics["flip@1"]["value"]
    text = f"Accuracy moves by {_signed(100 * change['value'])} points"
    if change.get("low") is not None and change.get("high") is not None:
        low, high = (_signed(100 * change[end]) for end in ("low", "high"))
        text += f" (95 % interval {low} to {high})"
    text += ", "
    text += f"while {_percent(flip)} of the inputs got another class"
    if lost and lost["value"] is not None:
        text += f"; {_percent(lost['value'])} of those that were right are wrong now"
    return [text + "."]


def _ndcg(metrics: Metrics) -> list[str]:
    before, after = metrics.get("reference.ndcg@10"), metrics.get("ndcg@10")
    lost = metrics.get("gold_lost@1")
    if not (before and after and before["value"] and after["value"] is not None):
        return []
    change = 100 * (after["value"] / before["value"] - 1)
    text = f"The mean nDCG@10 moves by {change:+.1f} %"
    if lost and lost["value"] is not None:
        text += f", while {_percent(lost['value'])} of the inputs whose first answer was relevant lost it"
    return [text + "."]


def _out_of_reach(record: Mapping[str, Any]) -> list[str]:
    """What no reranker can find: relevant documents that are not in the shortlist."""
    shortlist = record["data"].get("shortlist") or {}
    n, found = (shortlist.get(name) for name in ("n_relevant", "n_relevant_found"))
    if not n or found == n:
        return []
    return [
        f"{n - found:,} of {n:,} relevant documents are in no shortlist: neither arm can find "
        "them, and they count in nDCG."
    ]


def _signed(value: float) -> str:
    return f"{value:+.1f}" if round(value, 1) else "0.0"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
