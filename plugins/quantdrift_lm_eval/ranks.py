"""What the ranks of one evaluation have to agree on: every rank holds a pair of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch

from quantdrift.errors import RunError


class Ranks:
    """The ranks of an lm-eval model; with one rank, everything is as if there were none."""

    def __init__(self, lm: Any) -> None:
        self._lm = lm

    def all(self, own: list[Any]) -> list[Any]:
        """The lists of all ranks, one after another."""
        if self._lm.world_size <= 1:
            return own
        every: list[Any] = [None] * self._lm.world_size
        torch.distributed.all_gather_object(every, own)
        return list(chain.from_iterable(every))

    def any(self, here: bool) -> bool:
        """Whether something is so on any rank."""
        return any(self.all([here]))

    def refuse_different(self, digest: str, name: str) -> None:
        """Refuse candidates that are not the same on all ranks."""
        if len(set(self.all([digest]))) > 1:
            raise RunError(
                f"the candidates of {name} differ between ranks: calibration on devices that are not alike gives other "
                "weights. Let the ranks share a cache (QUANTDRIFT_CACHE), or use rtn or hqq"
            )

    @contextmanager
    def first_one_first(self) -> Iterator[None]:
        """Inside, the first rank is through before the others begin."""
        if self._lm.rank != 0:
            self._lm.barrier()
        try:
            yield
        finally:
            if self._lm.rank == 0:
                self._lm.barrier()
