"""Runtime options of a candidate: number type, attention, padding, threads, batch size."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.runtime import STAGE
from quantdrift.candidate.stages import ModelStage, StagedModel
from quantdrift.models.weights import restoring
from quantdrift.scheme import Scheme
from quantdrift.spec.grammar import DTYPES


class Runtime(ModelStage):
    """The runtime options of a candidate; all others are those of the reference."""

    def __init__(self, scheme: Scheme, pair: StagedModel) -> None:
        super().__init__(scheme, pair)
        given = {key: scheme.option(key) for key in STAGE.options}
        self.told: dict[str, Any] = {
            key: int(value) if value.isdigit() else value for key, value in given.items() if value is not None
        }
        self.batch_size = self.told.get("batch")
        self.dtype = None if "dtype" not in self.told else DTYPES[self.told["dtype"]]
        if str(pair.weight.dtype) == f"torch.{self.dtype}":
            raise UnsupportedError(
                f"{pair.name} is in {self.dtype} at full precision already, so +dtype={self.told['dtype']} changes "
                "nothing; leave it out, or take the reference in another type (--dtype float32)"
            )

    def key(self) -> str:
        """Return all options, which change how the same weights are run."""
        return str(sorted(self.told.items()))

    def record(self) -> Mapping[str, Any]:
        """Return all options."""
        return {STAGE.record_key: self.told}

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the options.

        Raises:
            UnsupportedError: the model has no such attention, or no tokenizer.
        """
        with ExitStack() as stack:
            for module in self.pair.modules:
                stack.enter_context(restoring(module))
                if self.dtype is not None:
                    module.to(getattr(torch, self.dtype))
                if (name := self.told.get("attention")) is not None:
                    _attend(module, name)
            if (side := self.told.get("padding")) is not None:
                _pad(self.pair.encoder, side, stack)
            if (threads := self.told.get("threads")) is not None:
                stack.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(threads)
            yield


def _attend(module: nn.Module, name: str) -> None:
    bodies: list[Any] = [part for part in module.modules() if hasattr(part, "set_attn_implementation")]
    if not bodies:
        raise UnsupportedError(f"+attention={name} is of models of transformers; expected one, or leave it out")
    try:
        bodies[0].set_attn_implementation(name)  # the outermost one sets those inside
    except (ValueError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise UnsupportedError(f"the model has no attention {name!r}: {reason}; leave out +attention=") from error


def _pad(encoder: Any, side: str, stack: ExitStack) -> None:
    tokenizer: Any = getattr(getattr(encoder, "model", None), "tokenizer", None)
    if not hasattr(tokenizer, "padding_side"):
        raise UnsupportedError(
            f"+padding={side} is of embedding models that quantdrift run loads itself; leave it out here"
        )
    stack.callback(setattr, tokenizer, "padding_side", tokenizer.padding_side)
    tokenizer.padding_side = side
