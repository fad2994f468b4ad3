"""What a pair inside lm-eval calibrates on: the prompts of its tasks, or the texts of a file.

Only what stands before an answer is used, never a choice, a target or a text whose perplexity is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import torch

from quantdrift.engine.encoders.sentence import tokenizer_digest
from quantdrift.engine.store import digest_of
from quantdrift.errors import DataError
from quantdrift.harness import Side, runs

_WITH_ANSWER = 2
"""Arguments of a request that has a prompt before what is asked."""


def prompts_of(requests: Iterable[Any]) -> list[str]:
    """The prompts of requests that have one, each once, in alphabetical order."""
    found = {str(one.args[0]) for one in requests if len(one.args) >= _WITH_ANSWER}
    return sorted(prompt for prompt in found if prompt.strip())


def text_inputs(lm: Any, texts: Sequence[str]) -> Side:
    """Texts to calibrate on."""
    if not texts:
        raise DataError(
            f"{lm.pair.scheme} calibrates on the tasks' prompts, and these tasks have none: nothing stands before what "
            "they ask for. Give texts with +calib=FILE.txt, add a task with prompts, or use rtn or hqq"
        )
    key = {
        "harness": ["lm_eval", version("lm_eval")],
        "model": [lm.backend, lm.max_length, lm.add_bos_token, str(lm.mixed_precision_dtype)],
        "tokenizer": tokenizer_digest(lm.tokenizer),
        "texts": digest_of(text.encode("utf-8", "replace").decode() for text in texts),
    }
    return runs(
        lambda rows, _: run_texts(lm, [texts[row] for row in rows]),
        len(texts),
        key=key,
        lengths=[len(text) for text in texts],
    )


def run_texts(lm: Any, texts: Sequence[str]) -> None:
    """Run a causal or sequence-to-sequence model on a batch of texts, the last `max_length` tokens of each."""
    tokens = [lm.tok_encode(text)[-lm.max_length :] or [lm.prefix_token_id] for text in texts]
    ids = torch.zeros((len(tokens), max(map(len, tokens))), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, own in enumerate(tokens):
        ids[row, : len(own)], mask[row, : len(own)] = torch.tensor(own), 1
    given = {"input_ids": ids.to(lm.device), "attention_mask": mask.to(lm.device)}
    if lm.backend == "seq2seq":
        start = lm.config.decoder_start_token_id or 0
        given["decoder_input_ids"] = torch.full_like(given["input_ids"][:, :1], start)
    with torch.no_grad(), lm.autocast():  # of one thread; batches have threads of their own
        lm.model(**given)
