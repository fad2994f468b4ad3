"""The candidate as its libraries save any model: float weights that hold only the grid's values."""

from __future__ import annotations

import errno
import inspect
import re
from pathlib import Path
from typing import Any

import torch

from quantdrift.models.fingerprint import weights_fingerprint
from quantdrift.saving.candidate import Candidate, in_place
from quantdrift.saving.written import check_written

__all__ = ["save_model_files", "save_safetensors"]


def save_safetensors(candidate: Candidate, folder: Path) -> dict[str, Any]:
    """Write the model with the candidate's weights, in the dtype it is loaded in.

    Args:
        candidate: what to save.
        folder: an empty folder.

    Returns:
        What `scheme.json` says of it: dtype, digest of the weights.

    Raises:
        UnsupportedError: the library saves something else than the model's weights.
    """
    with in_place(candidate):
        save_model_files(candidate.model, folder)
        fingerprint = weights_fingerprint([candidate.module])
        check_written(candidate, folder, fingerprint)
    dtypes = sorted({str(p.dtype) for p in candidate.module.parameters()})
    return {
        "dtype": ", ".join(dtype.removeprefix("torch.") for dtype in dtypes),
        "candidate_fingerprint": fingerprint,
    }


def save_model_files(model: Any, folder: Path) -> None:
    """Let a model's library save it, with tokenizer and settings where the library does that.

    Raises:
        OSError: it cannot be written.
    """
    from safetensors import SafetensorError  # noqa: PLC0415 -- comes with transformers

    save = model.save_pretrained
    # the card that sentence-transformers makes speaks of the model that was quantized
    options = (
        {"create_model_card": False}
        if "create_model_card" in inspect.signature(save).parameters
        else {}
    )
    try:
        with torch.no_grad():
            save(str(folder), **options)
    except SafetensorError as error:  # a full disk, in words
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error
