"""A model of lm-eval's as the generator after a search: hf, vllm, local-completions, openai-chat-completions.

Answers are greedy and end with the line. lm-eval's cache is pickled and not used; the caller keeps the answers.
"""

import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from importlib.metadata import version
from typing import Any, Literal

from torch import nn

from quantdrift.base.display import in_one_line
from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.sentence.work import pick_device
from quantdrift.models.loading import LoadLog, quiet_loading
from quantdrift.models.weights import weights_fingerprint
from quantdrift_rag.questions import Prompt

_LOCAL = ("hf", "hf-auto", "huggingface")
"""Models whose files transformers loads here."""
_SECRET = re.compile("token|key|secret|password|header", re.IGNORECASE)


class HarnessGenerator:
    """A model of lm-eval's.

    Attributes:
        name: lm-eval's model and the name of its weights.
        kind: "generator".
        identity: what decides the answers: model, arguments, version, digest of local weights, settings.
    """

    kind: Literal["generator"] = "generator"

    def __init__(
        self,
        model: str,
        arguments: str,
        *,
        batch_size: int = 8,
        max_tokens: int = 32,
        chat: bool = False,
        device: str | None = None,
    ) -> None:
        """Load the model.

        Args:
            model: lm-eval's name, as `lm_eval --model`.
            arguments: as `lm_eval --model_args`.
            batch_size: prompts per call; answers are returned call by call.
            max_tokens: most tokens of an answer.
            chat: whether a prompt goes through the model's chat template as a user's message, as on chat servers.
            device: device of a local model.

        Raises:
            UnsupportedError: lm-eval has no such model, or it cannot be loaded.
        """
        quiet_loading()  # before lm-eval imports libraries that warn
        from lm_eval.api.registry import get_model  # noqa: PLC0415
        from lm_eval.utils import simple_parse_args_string  # noqa: PLC0415

        from quantdrift_lm_eval.model import vetted  # noqa: PLC0415

        for talkative in ("lm_eval", "transformers"):
            logging.getLogger(talkative).setLevel(logging.ERROR)
        if model == "quantdrift":
            raise UnsupportedError("expected a generator at full precision; the model 'quantdrift' is a pair of two")
        options = simple_parse_args_string(arguments)
        named = options.get("pretrained") or options.get("model") or ""
        self.name = f"{model} {named}".strip()  # arguments may hold a server's key
        self._batch_size, self._chat = batch_size, chat or "chat-completions" in model
        self._settings: dict[str, Any] = {"until": ["\n"], "do_sample": False, "max_gen_toks": max_tokens}
        if model in _LOCAL and not named:
            raise UnsupportedError(f"expected a model for {model}; name it: --model-args pretrained=NAME")
        vetting = vetted(named, options) if model in _LOCAL else nullcontext(LoadLog())
        with in_one_line(f"the generator {self.name} cannot be loaded"), vetting as said:
            config = {"batch_size": batch_size, "device": str(pick_device(device)) if model in _LOCAL else device}
            self._lm: Any = get_model(model).create_from_arg_string(arguments, config)
        self._said = said.notes
        if (server := sys.modules.get("lm_eval.models.api_models")) is not None:
            server.tqdm = partial(server.tqdm, disable=True)  # type: ignore[attr-defined]  # it has no argument for that
        weights = getattr(self._lm, "model", None)  # a server's model is a name
        digest = weights_fingerprint([weights]) if isinstance(weights, nn.Module) else ""
        open_ = sorted((key, str(value)) for key, value in options.items() if not _SECRET.search(key))
        self.identity = f"{model} {open_} {version('lm_eval')} {digest} {self._settings} chat={self._chat}"

    def answers(self, prompts: Sequence[Prompt]) -> Iterator[list[tuple[Prompt, str]]]:
        """Yield every prompt with its answer, in batches of similar length, the longest first."""
        from lm_eval.api.instance import Instance  # noqa: PLC0415

        ordered = sorted(prompts, key=lambda prompt: (-len(prompt.text), prompt.text))
        for start in range(0, len(ordered), self._batch_size):
            batch = ordered[start : start + self._batch_size]
            with in_one_line(f"the generator {self.name} did not answer"):
                requests = [
                    Instance("generate_until", {}, (self._given(prompt), dict(self._settings)), start + n)
                    for n, prompt in enumerate(batch)
                ]
                said = self._lm.generate_until(requests, disable_tqdm=True)
            yield [(prompt, str(text or "")) for prompt, text in zip(batch, said, strict=True)]

    def notes(self, prompts: Sequence[Prompt]) -> list[str]:
        """Say how many prompts were cut, if the model's tokenizer is local."""
        model, encode, longest = (getattr(self._lm, name, None) for name in ("model", "tok_encode", "max_length"))
        if not (isinstance(model, nn.Module) and encode is not None and isinstance(longest, int)):
            return [*self._said]
        room = longest - self._settings["max_gen_toks"]
        cut = sum(len(encode(self._given(prompt))) > room for prompt in prompts)
        note = f"{cut:,} of {len(prompts):,} prompts are longer than the {room:,} tokens that the generator reads, and "
        return [*self._said, *([note + "lost their beginning: take fewer --passages"] if cut else [])]

    def _given(self, prompt: Prompt) -> Any:
        if not self._chat:
            return prompt.text
        return self._lm.apply_chat_template([{"role": "user", "content": prompt.text}])
