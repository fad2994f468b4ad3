"""The answers that --use_cache keeps: each arm has its own, and a stock run none of them.

lm-eval keeps answers by request alone, so two models must not share a file. Ours go into the same file under keys
that also name the arm's weights and settings: a file that a stock run has filled can be used, and the reference's
answers serve every scheme.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

from lm_eval.api.model import CacheHook, hash_args

from quantdrift.engine.encoders.sentence import tokenizer_digest
from quantdrift.engine.store import key_of


def is_drawn(kind: str, arguments: Sequence[Any]) -> bool:
    """Whether the answer to a request is drawn anew every time it is asked.

    As lm-eval reads the settings of generation: where `do_sample` is not set, a temperature above 0 draws.
    """
    if kind != "generate_until":
        return False
    asked = arguments[1].get("do_sample")
    return float(arguments[1].get("temperature") or 0) > 0 if asked is None else bool(asked)


class ArmCache(CacheHook):  # type: ignore[misc]  # lm-eval ships no types
    """Answers of one arm; as a hook it keeps each as soon as there is one."""

    def __init__(self, answers: MutableMapping[str, Any], arm: str) -> None:
        """Open lm-eval's file of answers for the arm of this digest."""
        super().__init__(None)
        self.answers, self.arm = answers, arm

    def key(self, kind: str, arguments: Any) -> str | None:
        """What the answer to a request is kept under; None if it is drawn anew every time."""
        arguments = list(arguments)
        return None if is_drawn(kind, arguments) else f"quantdrift-{hash_args(kind, [self.arm, *arguments])}"

    def add_partial(self, attr: str, req: Any, res: Any) -> None:
        """Keep an answer."""
        if (key := self.key(attr, req)) is not None:
            self.answers[key] = res

    def known(self, kind: str, request: Any) -> Any:
        """The answer that is kept; None if there is none."""
        key = self.key(kind, request.args)
        return None if key is None else self.answers.get(key)

    def fill(
        self,
        kind: str,
        requests: Sequence[Any],
        run: Callable[[Sequence[Any]], list[Any]],
        any_rank: Callable[[bool], bool],
    ) -> tuple[list[Any], int]:
        """Take the answers that are kept, and ask for the others."""
        answers = [self.known(kind, request) for request in requests]
        missing = [number for number, answer in enumerate(answers) if answer is None]
        if any_rank(bool(missing)) and requests:
            asked = missing or [0]  # again, so that the other ranks are not left alone
            for number, answer in zip(asked, run([requests[n] for n in asked]), strict=True):
                answers[number] = answer
                self.add_partial(kind, requests[number].args, answer)
            if hasattr(self.answers, "commit"):
                self.answers.commit()
        return answers, len(requests) - len(missing)


def arm_digest(lm: Any, weights: str) -> str:
    """Digest of everything that decides an answer beside the request."""
    names = "backend max_length add_bos_token truncation logits_cache think_end_token"
    return key_of(
        **{name: str(getattr(lm, name)) for name in names.split()},
        weights=weights,
        prefix_token=lm.prefix_token_id,
        dtypes=[str(lm.softmax_dtype), str(lm.mixed_precision_dtype)],
        batch_size=str(lm.batch_size),
        tokenizer=[tokenizer_digest(lm.tokenizer), str(lm.tokenizer.special_tokens_map)],
        runtime=lm.pair.runtime,
    )
