"""What opens, vets and describes a model or a checkpoint."""

import logging

UNASKED = "torchao"
"""A library that transformers imports wherever it is installed, even if no model needs it."""
WARNED: list[str] = []
"""Warnings of that import: notes of a run with such a checkpoint, and lines of `quantdrift doctor`."""

TEXT_BY_TEXT = "--batch-size 1 measures it text by text"
"""The end of a note on a model whose result for a text depends on the other texts of its batch."""


def _kept(record: logging.LogRecord) -> bool:
    """Keep a warning in place of printing it; of torch's only those about its enumerations."""
    text = " ".join(record.getMessage().split())
    if record.levelno < logging.WARNING or not (record.name == UNASKED or "is an Enum subclass" in text):
        return True
    WARNED.append(f"{record.name.partition('.')[0]} warns: {text.rstrip('.')}")
    return False


for _name in (UNASKED, "torch.utils._pytree"):
    logging.getLogger(_name).addFilter(_kept)
