"""lm-eval's hf model as a pair: every request is answered by the reference and by the candidate.

To lm-eval it is the candidate. The reference's answers are kept beside, for as long as an evaluation is being recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.model import CacheHook
from lm_eval.models.huggingface import HFLM

from quantdrift.display import clean, complain
from quantdrift.engine.calibration.sample import calibration_texts
from quantdrift.engine.encoders.vetting import loading, refuse_small_vocabulary
from quantdrift.engine.measure import other_batch_size
from quantdrift.engine.pair import QuantizedPair
from quantdrift.errors import UnsupportedError
from quantdrift.harness import PROBE, calibrate, progress_if, remembered
from quantdrift.models.named import ModelSource
from quantdrift.spec import Spec
from quantdrift_lm_eval.answers import ArmCache, arm_digest, is_drawn
from quantdrift_lm_eval.arguments import read_spec, refuse_options, without_output_layer
from quantdrift_lm_eval.hooks import on_evaluator_imported
from quantdrift_lm_eval.prompts import prompts_of, run_texts, text_inputs
from quantdrift_lm_eval.ranks import Ranks

DEFAULT_BATCH = 8
"""Texts per pass of the calibration where lm-eval finds the batch size itself."""

Ask = Callable[[Sequence[Any]], list[Any]]


@dataclass(slots=True, kw_only=True)
class Recording:
    """What one evaluation learns of the reference while lm-eval asks the candidate.

    Attributes:
        tasks: lm-eval's, by name.
        cache: the answers that --use_cache keeps; None keeps none.
        needs_digest: whether the digest of the candidate is to be taken.
        answers: id of a request to the reference's answers, in order; requests live as long as their tasks.
        again: the same, run again for the noise floor; without requests whose answers are drawn.
        seconds: time by stage.
        candidate_fingerprint: digest of the candidate, where it was taken.
        prepared: whether the candidate is calibrated.
    """

    tasks: Mapping[str, Any]
    cache: MutableMapping[str, Any] | None = None
    needs_digest: bool = False
    answers: dict[int, list[Any]] = field(default_factory=dict)
    again: dict[int, list[Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    candidate_fingerprint: str | None = None
    prepared: bool = False


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
        """Load the model."""
        asked = read_spec(pretrained, scheme)
        refuse_options(options)
        named = isinstance(pretrained, str)
        with _loading(asked.model, options) if named else nullcontext():
            super().__init__(asked.model if named else pretrained, **options)
        if getattr(self.config, "quantization_config", None) is not None:
            raise UnsupportedError(
                f"{asked.model} is quantized already; a pair starts from full precision. Name the model that it was "
                "made from"
            )
        refuse_small_vocabulary(self.model, asked.model, self.tokenizer)
        own = without_output_layer(self.model, asked.scheme)
        self.spec = Spec(model=asked.model, scheme=own)
        self.pair = QuantizedPair([self.model], own, name=asked.model)
        self.evidence = None if evidence is None else Path(str(evidence)).expanduser()
        self.noise_floor = bool(noise_floor)
        self.recorded: Recording | None = None
        self._ranks = Ranks(self)
        self._sizes: dict[Any, int] = {}
        on_evaluator_imported(import_module("lm_eval.evaluator"))  # where no hook has done so

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the reference's weights."""
        return self.pair.fingerprint

    @contextmanager
    def recording(
        self, tasks: Mapping[str, Any], cache: MutableMapping[str, Any] | None, *, digest: bool
    ) -> Iterator[Recording]:
        """Inside, the reference answers as well, and its answers are kept."""
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
        if recorded is None:
            self._prepare(requests)
            self._tell("lm-eval's evaluate does not know of the pair: only the candidate is run")
            with self.pair.candidate():
                return ask(requests)
        if not recorded.prepared:
            start = time.perf_counter()
            self._prepare([request for task in recorded.tasks.values() for request in task.instances])
            recorded.prepared = True
            recorded.seconds["calibration"] = round(time.perf_counter() - start, 3)
        self._sizes.clear()
        put_back = remembered()
        _note(recorded.answers, requests, self._arm(recorded, "reference", kind, requests, ask))
        # what is drawn is drawn anew in other batches, and that is no noise of the weights
        fixed = [request for request in requests if not is_drawn(kind, request.args)]
        if self.noise_floor and len(fixed) < len(requests):
            self._tell(f"noise floor: not of {len(requests) - len(fixed):,} answers that are drawn")
        if self.noise_floor and self._ranks.any(bool(fixed)):
            put_back()
            with self._other_batch_size():
                _note(recorded.again, fixed, self._arm(recorded, "noise floor", kind, fixed, ask))
        put_back()
        with self.pair.candidate():
            if recorded.needs_digest and recorded.candidate_fingerprint is None:
                recorded.candidate_fingerprint = self.pair.candidate_fingerprint()
                self._ranks.refuse_different(recorded.candidate_fingerprint, str(self.spec))
            return self._arm(recorded, "candidate", kind, requests, ask)

    def _arm(self, recorded: Recording, stage: str, kind: str, requests: Sequence[Any], ask: Ask) -> list[Any]:
        """The answers of the arm that is in place, from the cache where they are kept."""
        start = time.perf_counter()
        self._tell(f"{stage}: {len(requests):,} {kind} requests")
        if recorded.cache is None:
            answers = ask(requests)
        else:
            weights = recorded.candidate_fingerprint if stage == "candidate" else self.fingerprint
            self.cache_hook = hook = ArmCache(recorded.cache, arm_digest(self, f"{weights} {stage}"))
            try:
                answers, n_kept = hook.fill(kind, requests, ask, self._ranks.any)
            finally:
                self.cache_hook = CacheHook(None)
            self._tell(f"{stage}: {n_kept:,} of them were in the cache")
        took = time.perf_counter() - start
        recorded.seconds[stage] = round(recorded.seconds.get(stage, 0) + took, 3)
        return answers

    def _prepare(self, requests: Sequence[Any]) -> None:
        """See which layers the model uses; calibrate the candidate, where it needs that."""
        with self.pair.observed():
            run_texts(self, [" ".join(map(str, request.args)) for request in requests[:PROBE]])
        if not self.pair.needs_calibration:
            return
        texts = calibration_texts(self.pair.scheme)
        prompts = sorted(set(self._ranks.all(prompts_of(requests)))) if texts is None else texts
        with self._ranks.first_one_first():  # the others find the layers in the cache
            calibrate(
                self.pair,
                lambda: text_inputs(self, prompts),
                batch_size=self.batch_size if isinstance(self.batch_size, int) else DEFAULT_BATCH,
                progress=progress_if(self.rank == 0),
                source="prompts of the tasks" if texts is None else None,
            )

    def autocast(self) -> Any:
        """The context that HFLM calls the model in."""
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
            complain(clean(message))


def _note(known: dict[int, list[Any]], requests: Sequence[Any], answers: Sequence[Any]) -> None:
    for request, answer in zip(requests, answers, strict=True):
        known.setdefault(id(request), []).append(answer)


def _loading(name: str, options: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Around the loading of what transformers is given a name of, a folder or a hub id."""
    local = Path(name).is_dir()
    source = ModelSource(
        name=name, canonical=Path(name).name if local else name, kind="local" if local else "hub", location=name
    )
    return loading(source, revision=options.get("revision"), trusted=bool(options.get("trust_remote_code")))
