"""What a pair inside lm-eval calibrates on: the prompts of its tasks, or the texts of a file.

Only what stands before an answer is used, never a choice, a target or a text whose perplexity is
measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from hashlib import blake2b
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantdrift.engine.calibration.sample import Sample, calibration_texts, draw_sample
from quantdrift.engine.inputs import Inputs
from quantdrift.errors import DataError
from quantdrift.spec import Scheme

_WITH_ANSWER = 2
"""Arguments of a request that has a prompt before what is asked."""


def prompts_of(requests: Iterable[Any]) -> list[str]:
    """The prompts of requests that have one, each once, in alphabetical order.

    Args:
        requests: instances of lm-eval.
    """
    found = {str(one.args[0]) for one in requests if len(one.args) >= _WITH_ANSWER}
    return sorted(prompt for prompt in found if prompt.strip())


class PromptRunner:
    """Runs a causal or sequence-to-sequence model on texts, for what its layers see."""

    def __init__(self, lm: Any, autocast: Callable[[], AbstractContextManager[Any]]) -> None:
        """Nothing is run yet.

        Args:
            lm: lm-eval's HFLM.
            autocast: the context that it calls the model in.
        """
        self._lm, self._autocast = lm, autocast

    def __call__(self, texts: Sequence[str]) -> None:
        """Run the model on a batch of texts, the last `max_length` tokens of each."""
        lm = self._lm
        tokens = [lm.tok_encode(text)[-lm.max_length :] or [lm.prefix_token_id] for text in texts]
        longest = max(map(len, tokens))
        ids = torch.zeros((len(tokens), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, own in enumerate(tokens):
            ids[row, : len(own)], mask[row, : len(own)] = torch.tensor(own), 1
        given: dict[str, Tensor] = {"input_ids": ids.to(lm.device), "attention_mask": mask.to(lm.device)}
        if lm.backend == "seq2seq":
            start = lm.config.decoder_start_token_id or 0
            given["decoder_input_ids"] = torch.full_like(given["input_ids"][:, :1], start)
        with torch.no_grad(), self._autocast():  # of one thread; batches have threads of their own
            lm.model(**given)


def sample_of(lm: Any, scheme: Scheme, prompts: Sequence[str], *, runner: PromptRunner, batch_size: int) -> Sample:
    """Draw what the candidate is calibrated on.

    Args:
        lm: lm-eval's HFLM.
        scheme: its `+calib=` and `+seed=` say how many, which, or of what file.
        prompts: of the tasks.
        runner: runs the model.
        batch_size: texts per forward pass.

    Raises:
        DataError: there are no prompts, or the file cannot be used.
        SpecError: number or seed are none.
    """
    given = calibration_texts(scheme)
    texts = list(prompts) if given is None else given
    if not texts:
        raise DataError(
            f"{scheme} calibrates on the tasks' prompts, and these tasks have none: nothing stands "
            "before what they ask for. Give texts with +calib=FILE.txt, add a task with prompts, "
            "or use rtn or hqq"
        )

    def run(rows: NDArray[np.int64], _: int) -> NDArray[np.float32]:
        runner([texts[row] for row in rows])
        return np.zeros((len(rows), 0), dtype=np.float32)

    inputs = Inputs(
        role="document",
        ids=[str(number) for number in range(len(texts))],
        encode=run,
        key={
            "harness": ["lm_eval", version("lm_eval")],
            "model": [lm.backend, lm.max_length, lm.add_bos_token, str(lm.mixed_precision_dtype)],
            "tokenizer": tokenizer_digest(lm.tokenizer),
            "texts": _digest(texts),
        },
        lengths=np.array([len(text) for text in texts], dtype=np.int64),
    )
    sample = draw_sample(inputs, scheme, batch_size)
    if given is not None:
        return sample
    return replace(sample, record={**sample.record, "source": "prompts of the tasks"})


def tokenizer_digest(tokenizer: Any) -> str:
    """Digest of a tokenizer: its rules where it is a fast one, else its vocabulary."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else str(sorted(tokenizer.get_vocab().items()))
    return _digest([rules, str(tokenizer.special_tokens_map)])


def _digest(texts: Iterable[str]) -> str:
    digest = blake2b(digest_size=16)
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()
