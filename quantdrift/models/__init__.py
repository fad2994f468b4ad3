"""Everything that needs torch: encoders, quantizers, scoring, and the one way to measure a pair."""

import logging

UNASKED = "torchao"
"""A library that transformers imports wherever it is installed, whoever needs it."""
WARNED: list[str] = []
"""What that import warns of: notes of a run that such a checkpoint takes part in, and lines of `quantdrift doctor`."""

TEXT_BY_TEXT = "--batch-size 1 measures it text by text"
"""The end of a note on a model that reads a text by what else is in its batch."""


def _kept(record: logging.LogRecord) -> bool:
    """Keep a warning in place of printing it; torch's, of which there are others, are those of its enumerations."""
    text = " ".join(record.getMessage().split())
    if record.levelno < logging.WARNING or not (record.name == UNASKED or "is an Enum subclass" in text):
        return True
    WARNED.append(f"{record.name.partition('.')[0]} warns: {text.rstrip('.')}")
    return False


for _name in (UNASKED, "torch.utils._pytree"):
    logging.getLogger(_name).addFilter(_kept)
