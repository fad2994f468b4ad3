"""Who was measured, on what and how, from what a run or a comparison of two tells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from quantdrift.comparison.matching import HARMLESS, SOFTWARE
from quantdrift.evidence import Evidence
from quantdrift.finished.diff import Diff
from quantdrift.finished.readers.files import digest
from quantdrift.finished.record import data_digest
from quantdrift.gate.snapshot import Identity
from quantdrift.runs import classifies

__all__ = ["identity_of_diff", "identity_of_run", "of", "one_right_answer"]

_OF_DATA = ("subset", "revision", "n_fewshot")
"""What a harness tells of data that it has no digest of, beside name and split."""

_RANKED = frozenset({None, "reranking", "self-retrieval"})
"""Readings of scores that rank documents; by the others an input has one right answer."""


def identity_of_run(record: Mapping[str, Any]) -> Identity:
    """Of a run folder.

    Args:
        record: the content of its run.json.
    """
    # what a comparison of two finished runs wrote knows no weights
    compared = "diff" in record
    model, data, settings = (of(record, name) for name in ("model", "data", "settings"))
    told = {} if data.get("fingerprint") else {f"data {name}": data.get(name) for name in _OF_DATA}
    plain = _plain({**settings, **{name: held for name, held in told.items() if held is not None}})
    return Identity(
        spec=str(record.get("spec", "unknown spec")),
        reference=str(model.get("name", "unknown model")),
        reference_digest=None if compared else _text(model.get("fingerprint")),
        candidate_digest=None if compared else _text(model.get("candidate_fingerprint")),
        data=_data_name(data),
        data_digest=_text(data.get("fingerprint")),
        settings={k: held for k, held in plain.items() if k not in HARMLESS | SOFTWARE},
        software={k: held for k, held in plain.items() if k in SOFTWARE},
    )


def identity_of_diff(
    diff: Diff, parts: Mapping[str, Evidence], asked: Mapping[str, str]
) -> Identity:
    """Of a comparison of two finished runs.

    Args:
        diff: A is the reference, B the candidate.
        parts: evidence by name; the name is empty where there is only one.
        asked: digest of what its inputs were asked, by the same names.
    """
    n = sum(evidence.n_inputs for evidence in parts.values())
    return Identity(
        spec=f"{diff.a.model} vs {diff.b.model}",
        reference=diff.a.model,
        reference_digest=None,
        candidate_digest=None,
        data=diff.a.data or diff.b.data or f"{n:,} inputs",
        data_digest=_digest(parts, asked),
        settings={k: held for name in parts for k, held in _settings(name, parts[name]).items()},
    )


def one_right_answer(record: Mapping[str, Any]) -> bool:
    """Whether the inputs of a run have one right answer: a class, a choice, a text.

    Args:
        record: the content of its run.json.
    """
    asked = of(of(record, "diff"), "reference").get("format") == "lm-eval"
    return asked or classifies(record) or of(record, "settings").get("reading") not in _RANKED


def of(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a record; empty if it has none of that name."""
    held = record.get(name)
    return held if isinstance(held, Mapping) else {}


def _digest(parts: Mapping[str, Evidence], asked: Mapping[str, str]) -> str:
    """Of one part that of its data, so that a comparison that was written down has it too."""
    own = {name: data_digest(evidence, asked[name]) for name, evidence in parts.items()}
    if len(own) == 1:
        return next(iter(own.values()))
    return digest(*(f"{name}\n{each}" for name, each in own.items()))


def _settings(name: str, evidence: Evidence) -> dict[str, Any]:
    """Those of a comparison that was written down, so that either can be the baseline's."""
    of_part = f" of {name}" if name else ""
    # what a bound is worth depends on how deep the lists were
    depth = {} if evidence.exact else {f"ranks_compared{of_part}": evidence.depth}
    return {f"deltas{of_part}": evidence.deltas, **depth}


def _data_name(data: Mapping[str, Any]) -> str:
    split = data.get("split")
    return f"{data.get('name', 'unnamed data')}" + (f" ({split})" if split else "")


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by sorted name, as JSON gives them back."""
    return dict(json.loads(json.dumps(settings, sort_keys=True)))
