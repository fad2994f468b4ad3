"""lm-eval's hf model as a pair: every request is answered by the reference and by the candidate.

To lm-eval it is the candidate. The reference's answers are kept beside, for as long as an
evaluation is being recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.model import CacheHook
from lm_eval.models.huggingface import HFLM

from quantdrift.engine.encoders.vetting import loading, refuse_small_vocabulary
from quantdrift.engine.pair import Arm, QuantizedPair
from quantdrift.engine.search import other_batch_size
from quantdrift.engine.store import default_store
from quantdrift.errors import UnsupportedError
from quantdrift.models.named import ModelSource
from quantdrift.progress import Silent, Terminal
from quantdrift.spec import Spec
from quantdrift_lm_eval.answers import ArmCache, arm_digest, filled_in
from quantdrift_lm_eval.arguments import read_spec, refuse_options, without_output_layer
from quantdrift_lm_eval.careful import warn
from quantdrift_lm_eval.hooks import on_evaluator_imported
from quantdrift_lm_eval.prompts import PromptRunner, prompts_of, sample_of
from quantdrift_lm_eval.randomness import is_drawn, remembered
from quantdrift_lm_eval.ranks import Ranks
from quantdrift_lm_eval.recording import Recording

DEFAULT_BATCH = 8
"""Texts per pass of the calibration where lm-eval finds the batch size itself."""
PROBE = 2
"""Texts that are run once with an eye on which layers they reach."""


class QuantizedPairLM(HFLM):  # type: ignore[misc]  # lm-eval ships no types
    """A causal or sequence-to-sequence model of transformers and its quantized candidate.

    Attributes:
        spec: the pair, canonical.
        pair: the weights.
        evidence: the folder that run folders go to; None for the default one.
        noise_floor: whether the reference is run a second time, with another batch size.
    """

    is_quantdrift_pair = True

    def __init__(
        self,
        pretrained: Any = None,
        scheme: str | None = None,
        *,
        evidence: str | None = None,
        noise_floor: bool = False,
        **options: Any,
    ) -> None:
        """Load the model.

        Args:
            pretrained: NAME, NAME@SCHEME, or a model of transformers.
            scheme: how the candidate is made, W4-gptq.
            evidence: folder for run folders; beside lm-eval's own results if not given.
            noise_floor: whether to run the reference a second time.
            options: of lm-eval's hf model.

        Raises:
            QuantDriftError: there is no such pair.
        """
        asked = read_spec(pretrained, scheme)
        refuse_options(options)
        named = isinstance(pretrained, str)
        with _loading(asked.model, options) if named else nullcontext():
            super().__init__(asked.model if named else pretrained, **options)
        if getattr(self.config, "quantization_config", None) is not None:
            raise UnsupportedError(
                f"{asked.model} is quantized already; a pair starts from full precision. Name the "
                "model that it was made from"
            )
        refuse_small_vocabulary(self.model, asked.model, self.tokenizer)
        own = without_output_layer(self.model, asked.scheme)
        self.spec = Spec(model=asked.model, scheme=own)
        self.pair = QuantizedPair([self.model], own, name=asked.model)
        self.evidence = None if evidence is None else Path(str(evidence)).expanduser()
        self.noise_floor = bool(noise_floor)
        self.recorded: Recording | None = None
        self._ranks = Ranks(self)
        self._fingerprint: str | None = None
        self._sizes: dict[Any, int] = {}
        on_evaluator_imported(import_module("lm_eval.evaluator"))  # where no hook has done so

    @property
    def fingerprint(self) -> str:
        """Digest of the reference's weights, taken once."""
        if self._fingerprint is None:
            self._fingerprint = self.pair.fingerprint
        return self._fingerprint

    @contextmanager
    def recording(
        self, tasks: Mapping[str, Any], cache: MutableMapping[str, Any] | None, *, digest: bool
    ) -> Iterator[Recording]:
        """Inside, the reference answers as well, and its answers are kept.

        Args:
            tasks: that will be evaluated.
            cache: the answers that --use_cache keeps.
            digest: whether the digest of the candidate is wanted.
        """
        self.recorded = Recording(tasks=tasks, cache=cache, needs_digest=digest or cache is not None)
        try:
            yield self.recorded
        finally:
            self.recorded = None

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[Any]:
        """As of HFLM, by the candidate."""
        return self._both("loglikelihood", requests, disable_tqdm)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[Any]:
        """As of HFLM, by the candidate."""
        return self._both("loglikelihood_rolling", requests, disable_tqdm)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[Any]:
        """As of HFLM, by the candidate."""
        return self._both("generate_until", requests, disable_tqdm)

    def _both(self, kind: str, requests: Sequence[Any], disable_tqdm: bool) -> list[Any]:
        run = getattr(super(), kind)

        def ask(some: Sequence[Any]) -> list[Any]:
            return list(run(some, disable_tqdm=disable_tqdm))

        recorded = self.recorded
        self._prepare(requests if recorded is None else recorded.requests)
        if recorded is None:
            self._tell("lm-eval's evaluate does not know of the pair: only the candidate is run")
            with self.pair.candidate():
                return ask(requests)
        self._sizes.clear()
        draws = remembered()
        reference = self._arm("reference", kind, requests, ask)
        recorded.note(requests, reference)
        # what is drawn is drawn anew in other batches, and that is no noise of the weights
        fixed = [request for request in requests if not is_drawn(kind, request.args)]
        if self.noise_floor and len(fixed) < len(requests):
            self._tell(f"noise floor: not of {len(requests) - len(fixed):,} answers that are drawn")
        if self.noise_floor and self._ranks.any(bool(fixed)):
            draws()
            with self._other_batch_size():
                again = self._arm("reference", kind, fixed, ask, stage="noise floor")
            recorded.note_again(fixed, again)
        draws()
        with self.pair.candidate():
            if recorded.needs_digest and recorded.candidate_fingerprint is None:
                recorded.candidate_fingerprint = self.pair.candidate_fingerprint()
                self._ranks.refuse_different(recorded.candidate_fingerprint, str(self.spec))
            return self._arm("candidate", kind, requests, ask)

    def _arm(
        self,
        arm: Arm,
        kind: str,
        requests: Sequence[Any],
        ask: Callable[[Sequence[Any]], list[Any]],
        stage: str | None = None,
    ) -> list[Any]:
        """The answers of the arm that is in place, from the cache where they are kept."""
        recorded = self.recorded
        assert recorded is not None  # _both asks before
        start = time.perf_counter()
        self._tell(f"{stage or arm}: {len(requests):,} {kind} requests")
        if recorded.cache is None:
            answers = ask(requests)
        else:
            weights = self.fingerprint if arm == "reference" else recorded.candidate_fingerprint
            hook = ArmCache(recorded.cache, arm_digest(self, f"{weights} {stage or arm}"))
            self.cache_hook = hook
            try:
                filled = filled_in(hook, kind, requests, ask, self._ranks.any)
            finally:
                self.cache_hook = CacheHook(None)
            self._tell(f"{stage or arm}: {filled.n_kept:,} of them were in the cache")
            answers = filled.answers
        name = stage or arm
        took = time.perf_counter() - start
        recorded.seconds[name] = round(recorded.seconds.get(name, 0) + took, 3)
        return answers

    def _prepare(self, requests: Sequence[Any]) -> None:
        """Calibrate the candidate, where it needs that; see which layers the model uses."""
        recorded = self.recorded
        if recorded is not None and recorded.prepared:
            return
        start = time.perf_counter()
        runner = PromptRunner(self, self._autocast)
        with self.pair.observed():
            runner([" ".join(map(str, request.args)) for request in requests[:PROBE]])
        if self.pair.needs_calibration:
            batch_size = self.batch_size if isinstance(self.batch_size, int) else DEFAULT_BATCH
            prompts = sorted(set(self._ranks.all(prompts_of(requests))))
            sample = sample_of(self, self.pair.scheme, prompts, runner=runner, batch_size=batch_size)
            progress = Terminal() if self.rank == 0 else Silent()
            with self._ranks.first_one_first():  # the others find the layers in the cache
                self.pair.prepare(sample, root=default_store().root, progress=progress)
        if recorded is not None:
            recorded.prepared = True
            recorded.seconds["calibration"] = round(time.perf_counter() - start, 3)

    def _autocast(self) -> Any:
        if self.mixed_precision_dtype is None:
            return nullcontext()
        return torch.autocast(device_type=self.device.type, dtype=self.mixed_precision_dtype)

    @contextmanager
    def _other_batch_size(self) -> Iterator[None]:
        size, sizes = self.batch_size, dict(self._sizes)
        if isinstance(size, int):
            self.batch_size_per_gpu: int | str = other_batch_size(size)
        else:
            self._sizes = {key: other_batch_size(size) for key, size in self._sizes.items()}
        try:
            yield
        finally:
            self.batch_size_per_gpu, self._sizes = size, sizes

    def _detect_batch_size(self, requests: Any = None, pos: int = 0) -> int:
        """As of HFLM, once for both arms: other batches would give other last digits."""
        key = (None if requests is None else len(requests), pos)
        if key not in self._sizes:
            self._sizes[key] = super()._detect_batch_size(requests, pos)
        return self._sizes[key]

    def _tell(self, message: str) -> None:
        if self.rank == 0:
            warn(message)


def _loading(name: str, options: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Around the loading of what transformers is given a name of, a folder or a hub id."""
    source = ModelSource(
        name=name,
        canonical=Path(name).name if Path(name).is_dir() else name,
        kind="local" if Path(name).is_dir() else "hub",
        location=name,
    )
    return loading(source, revision=options.get("revision"), trusted=bool(options.get("trust_remote_code")))
