"""Loading by other people's libraries, with the process left as it was."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

import torch

from quantdrift.models.checkpoint import NEEDED, Checkpoint
from quantdrift.quantizers.quiet_imports import import_gptqmodel, silenced

__all__ = ["process_undisturbed"]


@contextlib.contextmanager
def process_undisturbed(checkpoint: Checkpoint) -> Iterator[None]:
    """Undo what libraries do to the process, so that the reference computes as in any other run.

    Some greet on standard output, where a record may be expected, and some set the precision of
    products in float32.
    """
    precision = torch.get_float32_matmul_precision()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            if "gptqmodel" in NEEDED.get(checkpoint.method, ((), ""))[0]:
                stack.enter_context(silenced(import_gptqmodel()[1]))
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
