"""Loading by other people's libraries: the process left as it was, what goes wrong in one line."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

import torch

from quantdrift.errors import QuantDriftError, UnsupportedError
from quantdrift.models.checkpoint import NEEDED, Checkpoint
from quantdrift.quantizers.quiet_imports import import_gptqmodel, silenced

__all__ = ["one_line_errors", "process_undisturbed"]


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


@contextlib.contextmanager
def one_line_errors(checkpoint: Checkpoint) -> Iterator[None]:
    """What goes wrong in the libraries that load, as one line that names the checkpoint.

    Raises:
        UnsupportedError: in place of whatever they raise.
    """
    try:
        yield
    except QuantDriftError:
        raise
    except Exception as error:  # a dozen libraries read these formats, each with its own errors
        lines = str(error).strip().splitlines()
        first = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        raise UnsupportedError(
            f"the checkpoint {checkpoint.name} (format {checkpoint.method}) cannot be loaded from "
            f"{checkpoint.folder}: {first}"
        ) from error
