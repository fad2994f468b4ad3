"""Libraries that warn, while a model loads, of what has no bearing on it."""

from __future__ import annotations

import logging

__all__ = ["quiet_loading"]

_TALKATIVE = ("torchao", "torch.utils._pytree")
"""They report GPU extensions that are not for this machine, and each other's deprecations."""


def quiet_loading(*more: str) -> None:
    """Let these libraries log errors only, from now on.

    Args:
        more: names of further loggers.
    """
    for name in (*_TALKATIVE, *more):
        logging.getLogger(name).setLevel(logging.ERROR)
