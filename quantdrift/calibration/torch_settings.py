"""What torch keeps for each thread, carried from one thread to another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

__all__ = ["TorchSettings"]

_KINDS = ("cpu", "cuda", "mps")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSettings:
    """Settings of one thread.

    Attributes:
        n_threads: for one operation.
        autocast: device kind to the type that operations are cast to there.
        device: where new tensors go.
        cuda_device: number of the present GPU; None where there is none.
    """

    n_threads: int
    autocast: dict[str, torch.dtype]
    device: torch.device
    cuda_device: int | None

    @classmethod
    def present(cls) -> TorchSettings:
        """Those of the calling thread."""
        return cls(
            n_threads=torch.get_num_threads(),
            autocast={
                kind: torch.get_autocast_dtype(kind)
                for kind in _KINDS
                if torch.is_autocast_enabled(kind)
            },
            device=torch.get_default_device(),
            cuda_device=torch.cuda.current_device() if torch.cuda.is_available() else None,
        )

    @contextmanager
    def again(self) -> Iterator[None]:
        """Inside, the calling thread has them; gradients are off."""
        torch.set_num_threads(self.n_threads)
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if self.device != torch.get_default_device():
                stack.enter_context(self.device)
            if self.cuda_device is not None:
                stack.enter_context(torch.cuda.device(self.cuda_device))
            for kind, dtype in self.autocast.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype))
            yield
