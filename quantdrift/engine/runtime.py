"""How a candidate is run, beside what its weights are: number type, attention, padding, threads, batch size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from quantdrift.base.errors import UnsupportedError
from quantdrift.engine.weights import left_as_it_was
from quantdrift.spec.grammar import DTYPES, STAGES, Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What a scheme says of how the candidate is run; None leaves it as the reference is run.

    Attributes:
        dtype: of weights and activations: bf16 or fp16.
        attention: implementation in transformers: eager or sdpa.
        padding: side on which short texts are filled up: left or right.
        threads: of torch.
        batch: inputs per forward pass.
    """

    dtype: str | None = None
    attention: str | None = None
    padding: str | None = None
    threads: int | None = None
    batch: int | None = None

    @classmethod
    def of(cls, scheme: Scheme) -> Runtime | None:
        """That of a scheme; None if it says nothing."""
        given = {key: value for key, value in scheme.options if key in STAGES["runtime"]}
        if not given:
            return None
        values: dict[str, Any] = {key: int(value) if value.isdigit() else value for key, value in given.items()}
        return cls(**values)

    def told(self) -> Mapping[str, Any]:
        """What it says, as JSON values."""
        found = {name: getattr(self, name) for name in STAGES["runtime"]}
        return {name: value for name, value in found.items() if value is not None}

    @contextmanager
    def applied(self, modules: Sequence[nn.Module], encoder: Any) -> Iterator[None]:
        """Inside, the modules are run so; on leaving everything is as it was, bit for bit.

        Raises:
            UnsupportedError: the model has no such attention, or its tokenizer cannot be had.
        """
        with ExitStack() as stack:
            for module in modules:
                stack.enter_context(left_as_it_was(module))
                if self.dtype is not None:
                    module.to(getattr(torch, DTYPES[self.dtype]))
                if self.attention is not None:
                    _attend(module, self.attention)
            if self.padding is not None:
                _pad(encoder, self.padding, stack)
            if self.threads is not None:
                stack.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(self.threads)
            yield


def _attend(module: nn.Module, name: str) -> None:
    bodies: list[Any] = [part for part in module.modules() if hasattr(part, "set_attn_implementation")]
    if not bodies:
        raise UnsupportedError(f"+attention={name} is of models of transformers; expected one, or leave it out")
    try:
        bodies[0].set_attn_implementation(name)  # the outermost; it tells those inside
    except (ValueError, ImportError) as error:
        told = " ".join(str(error).split())
        raise UnsupportedError(f"the model has no attention {name!r}: {told}; leave out +attention=") from error


def _pad(encoder: Any, side: str, stack: ExitStack) -> None:
    tokenizer: Any = getattr(getattr(encoder, "model", None), "tokenizer", None)
    if not hasattr(tokenizer, "padding_side"):
        raise UnsupportedError(
            f"+padding={side} is of embedding models that quantdrift run loads itself; leave it out here"
        )
    stack.callback(setattr, tokenizer, "padding_side", tokenizer.padding_side)
    tokenizer.padding_side = side
