"""The models that mteb knows, for resolving and suggesting names."""

from __future__ import annotations


def known_names() -> list[str]:
    """Full names of all models in mteb's registry; importing it takes seconds."""
    from mteb.models.model_implementations import MODEL_REGISTRY  # noqa: PLC0415 -- slow

    return sorted(MODEL_REGISTRY)
