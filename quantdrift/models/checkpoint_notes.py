"""What a run says of a candidate that differs from its reference in more than its weights."""

from __future__ import annotations

import math
import re
from typing import Any

from quantdrift.models.checkpoint import Checkpoint
from quantdrift.models.sentence_encoder import SentenceEncoder
from quantdrift.saving.folder import read_record

__all__ = ["of_another_model", "other_settings"]

_WITHOUT_EFFECT = re.compile(
    r"_name_or_path|transformers_version|(torch_)?dtype|use_cache|tie_.*|output_.*"
    r"|initializer_.*|.*_token_id|.*dropout.*|.*_pdrop"
)
"""Settings of a transformer that change no embedding, or are said otherwise."""
_PLAIN = (str, int, float, bool)
_ROUNDING = 1e-6
"""Relative; GGUF keeps settings in 32 bits."""
_SHOWN = 3


def of_another_model(checkpoint: Checkpoint, reference: SentenceEncoder) -> list[str]:
    """A sentence where quantdrift made the candidate of another model than it is compared with.

    Args:
        checkpoint: the candidate.
        reference: what it is compared with.
    """
    if checkpoint.method != "quantdrift":
        return []
    base = read_record(checkpoint.folder).get("base_model", {}).get("canonical")
    if base in {None, reference.source.canonical}:
        return []
    return [
        f"{checkpoint.name} was made of {base}, not of {reference.source.canonical}: what changes "
        "is not from quantization alone"
    ]


def other_settings(reference: Any, candidate: Any) -> list[str]:
    """A sentence on settings in which two transformers differ, such as a base of rotary positions.

    Args:
        reference: a SentenceTransformer.
        candidate: another.
    """
    one, other = _settings(reference), _settings(candidate)
    found = [
        f"{name}: {one[name]!r} and {other[name]!r}"
        for name in sorted(one.keys() & other.keys())
        if not _WITHOUT_EFFECT.fullmatch(name) and _differ(one[name], other[name])
    ]
    if not found:
        return []
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return [
        f"reference and candidate differ in settings ({', '.join(found[:_SHOWN])}{more}): what "
        "changes is not from the weights alone"
    ]


def _settings(model: Any) -> dict[str, Any]:
    """Of the transformer that a model begins with; none where it begins with something else."""
    config: Any = getattr(getattr(model[0], "auto_model", None), "config", None)
    said: dict[str, Any] = config.to_dict() if hasattr(config, "to_dict") else {}
    groups = {name: value for name, value in said.items() if isinstance(value, dict)}
    inner = {f"{name}.{key}": part for name, group in groups.items() for key, part in group.items()}
    return {**said, **inner}


def _differ(one: object, other: object) -> bool:
    if not (isinstance(one, _PLAIN) and isinstance(other, _PLAIN)):
        return False
    if isinstance(one, float) and isinstance(other, float):
        return not math.isclose(one, other, rel_tol=_ROUNDING)
    return one != other
