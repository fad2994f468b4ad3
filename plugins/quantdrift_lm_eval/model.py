"""lm-eval's hf model as a pair: reference and candidate answer every request.

To lm-eval it is the candidate; the reference's answers are kept while an evaluation is recorded. Calibration takes the
prompts of the tasks or the texts of a file, never a choice, a target or a text whose perplexity is measured.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM

from quantdrift.base.display import clean, complain
from quantdrift.base.errors import DataError, RunError, UnsupportedError
from quantdrift.base.progress import progress_bars, timed
from quantdrift.builtin.sentence.work import reading_digest
from quantdrift.candidate.calibration.sample import calibration_texts
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.candidate.refusals import refuse_batches, refuse_deployment
from quantdrift.harness import PROBE, Side, calibrate, remembered, runs, tell_notes
from quantdrift.models.files.named import ModelSource
from quantdrift.models.layers import find_linears
from quantdrift.models.loading import LoadLog, loading, refuse_unfit_tokenizer
from quantdrift.models.store import digest_of
from quantdrift.scheme import Scheme
from quantdrift.spec.grammar import Spec, parse, parse_scheme
from quantdrift_lm_eval.evaluation import Recording
from quantdrift_lm_eval.hooks import on_evaluator_imported
from quantdrift_lm_eval.widths import Question, choose_widths

EXAMPLE = "--model_args pretrained=NAME,scheme=W4-gptq"
_REFUSED = (
    *("autogptq", "gguf_file", "gptqmodel", "load_in_4bit", "load_in_8bit", "quantization_config"),
    *("peft", "tp_plan"),
)

DEFAULT_BATCH = 8
"""Texts per pass of the calibration if lm-eval detects the batch size."""
_WITH_ANSWER = 2
"""Arguments of a request with a prompt and a continuation."""

Ask = Callable[[Sequence[Any]], list[Any]]


class QuantizedPairLM(HFLM):  # type: ignore[misc]  # lm-eval ships no types
    """A causal or sequence-to-sequence model of transformers and its quantized candidate.

    Attributes:
        spec: the pair's canonical spec.
        pair: its reference and candidate weights.
        evidence: folder of the run folders; None for the default one.
        measured_on: the questions on which widths were chosen, which the drift leaves out.
    """

    is_quantdrift_pair = True

    def __init__(
        self, pretrained: Any = None, scheme: str | None = None, *, evidence: str | None = None, **options: Any
    ) -> None:
        """Load the model."""
        asked = read_spec(pretrained, scheme)
        refuse_deployment(asked.scheme, "a language model makes no embeddings")
        refuse_batches(asked.scheme, "lm-eval makes the batches")
        refuse_options(options)
        named = isinstance(pretrained, str)
        with vetted(asked.model, options) if named else nullcontext(LoadLog()) as loaded:
            super().__init__(asked.model if named else pretrained, **options)
        if getattr(self.config, "quantization_config", None) is not None:
            raise UnsupportedError(
                f"{asked.model} is quantized already; a pair starts from full precision. Name the model that it was "
                "made from"
            )
        refuse_unfit_tokenizer(self.model, asked.model, self.tokenizer)
        kept = without_output_layer(self.model, asked.scheme)
        self.spec = Spec(model=asked.model, scheme=kept)
        self.pair = QuantizedPair([self.model], kept, name=asked.model)
        self.pair.notes = tuple(loaded.notes)
        if self.rank == 0:
            tell_notes(self.pair)
        self.evidence = None if evidence is None else Path(str(evidence)).expanduser()
        self.measured_on: list[Question] = []
        self.recorded: Recording | None = None
        self._sizes: dict[Any, int] = {}
        on_evaluator_imported(import_module("lm_eval.evaluator"))  # does nothing if the hook has done so

    @cached_property
    def fingerprint(self) -> str:
        """The digest of the reference's weights."""
        return self.pair.fingerprint

    @contextmanager
    def recording(self, tasks: Mapping[str, Any], *, digest: bool) -> Iterator[Recording]:
        """Let the reference answer too, and keep its answers."""
        self.recorded = Recording(tasks=tasks, needs_digest=digest)
        try:
            yield self.recorded
        finally:
            self.recorded = None

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Keep no answers: lm-eval's cache would give one arm's answers to the other."""
        self._tell("--use_cache keeps no answers of a pair")

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[Any]:
        """Answer as HFLM does, by the candidate."""
        return self._both("loglikelihood", requests, disable_tqdm)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[Any]:
        """Answer as HFLM does, by the candidate."""
        return self._both("loglikelihood_rolling", requests, disable_tqdm)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[Any]:
        """Answer as HFLM does, by the candidate."""
        return self._both("generate_until", requests, disable_tqdm)

    def _both(self, kind: str, requests: Sequence[Any], disable_tqdm: bool) -> list[Any]:
        run, recorded = getattr(super(), kind), self.recorded
        if recorded is None:
            self._prepare(requests)
            self._tell("lm-eval's evaluate does not know the pair: only the candidate is run")
            with self.pair.candidate():
                return list(run(requests, disable_tqdm=disable_tqdm))
        if not recorded.prepared:
            with timed(recorded.seconds, "calibration"):
                self._prepare([request for task in recorded.tasks.values() for request in task.instances])
            recorded.prepared = True
        self._sizes.clear()
        put_back = remembered()
        self._tell(f"both arms: {len(requests):,} {kind} requests")
        with timed(recorded.seconds, "reference"):
            for request, answer in zip(requests, run(requests, disable_tqdm=disable_tqdm), strict=True):
                recorded.answers.setdefault(id(request), []).append(answer)
        put_back()
        with self.pair.candidate():
            if recorded.needs_digest and recorded.candidate_fingerprint is None:
                recorded.candidate_fingerprint = digest = self.pair.candidate_fingerprint()
                if len(set(self._of_all_ranks([digest]))) > 1:
                    raise RunError(
                        f"the candidates of {self.spec} differ between ranks: calibration on different devices "
                        "gives different weights. Let the ranks share a cache (QUANTDRIFT_CACHE), or use rtn or hqq"
                    )
            with timed(recorded.seconds, "candidate"):
                return list(run(requests, disable_tqdm=disable_tqdm))

    def _prepare(self, requests: Sequence[Any]) -> None:
        """See which layers the model uses, and calibrate the candidate if its scheme needs that."""
        with self.pair.observed():
            run_texts(self, [" ".join(map(str, request.args)) for request in requests[:PROBE]])
        size = self.batch_size if isinstance(self.batch_size, int) else DEFAULT_BATCH
        progress = progress_bars(quiet=self.rank != 0)
        if self.pair.needs_widths:
            self.measured_on = choose_widths(self, requests, batch_size=size, progress=progress)
            if self.measured_on:
                self._tell(f"widths chosen on {len(self.measured_on):,} questions, which the drift leaves out")
        if not self.pair.needs_calibration:
            return
        prompts = calibration_texts(self.pair.scheme) or sorted(set(self._of_all_ranks(prompts_of(requests))))
        if self.rank:  # the first rank goes first; the others find its layers in the cache
            self.barrier()
        calibrate(
            self.pair,
            lambda: text_inputs(self, prompts),
            batch_size=size,
            progress=progress,
            source="prompts of the tasks",
        )
        if not self.rank:
            self.barrier()

    def left_out(self, task: str, indices: Sequence[int] | None) -> set[int]:
        """Return the documents of a task on which widths were chosen, as lm-eval's samples number them."""
        documents = [document for name, document in self.measured_on if name == task]
        return {indices[document] if indices else document for document in documents}

    def _of_all_ranks(self, values: list[Any]) -> list[Any]:
        """Return the lists of all ranks joined; each rank holds its own pair."""
        if self.world_size <= 1:
            return values
        every: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(every, values)
        return list(chain.from_iterable(every))

    def autocast(self) -> Any:
        """Return the context in which HFLM calls the model."""
        if self.mixed_precision_dtype is None:
            return nullcontext()
        return torch.autocast(device_type=self.device.type, dtype=self.mixed_precision_dtype)

    def _detect_batch_size(self, requests: Any = None, pos: int = 0) -> int:
        """Detect the batch size once for both arms, as it moves last digits."""
        key = (None if requests is None else len(requests), pos)
        if key not in self._sizes:
            self._sizes[key] = super()._detect_batch_size(requests, pos)
        return self._sizes[key]

    def _tell(self, message: str) -> None:
        if self.rank == 0:
            complain(clean(message))


def vetted(name: str, options: Mapping[str, Any]) -> AbstractContextManager[LoadLog]:
    """Check a model, a folder or a hub id, which transformers then loads."""
    local = Path(name).is_dir()
    source = ModelSource(
        name=name, canonical=Path(name).name if local else name, kind="local" if local else "hub", location=name
    )
    return loading(
        source, reads="head", revision=options.get("revision"), trusted=bool(options.get("trust_remote_code"))
    )


# --- calibration ----------------------------------------------------------------------------------


def prompts_of(requests: Sequence[Any]) -> list[str]:
    """Return the prompts of requests, each once, in alphabetical order."""
    prompts = {str(request.args[0]) for request in requests if len(request.args) >= _WITH_ANSWER}
    return sorted(text for text in prompts if text.strip())


def text_inputs(lm: Any, texts: Sequence[str]) -> Side:
    """Return texts to calibrate on."""
    if not texts:
        raise DataError(
            f"{lm.pair.scheme} calibrates on the tasks' prompts, and these tasks have none: nothing stands before what "
            "they ask for. Give texts with +calib=FILE.txt, add a task with prompts, or use rtn or hqq"
        )
    key = {
        "harness": ["lm_eval", version("lm_eval")],
        "model": [lm.backend, lm.max_length, lm.add_bos_token, str(lm.mixed_precision_dtype)],
        "reading": reading_digest([lm], [lm.model]),
        "texts": digest_of(text.encode("utf-8", "replace").decode() for text in texts),
    }

    def run(rows: list[int], _: int) -> None:
        run_texts(lm, [texts[row] for row in rows])

    return runs(run, len(texts), key=key, lengths=[len(text) for text in texts])


def run_texts(lm: Any, texts: Sequence[str]) -> None:
    """Run the model on a batch of texts, on the last `max_length` tokens of each."""
    tokens = [lm.tok_encode(text)[-lm.max_length :] or [lm.prefix_token_id] for text in texts]
    ids = torch.zeros((len(tokens), max(map(len, tokens))), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, kept in enumerate(tokens):
        ids[row, : len(kept)], mask[row, : len(kept)] = torch.tensor(kept), 1
    given = {"input_ids": ids.to(lm.device), "attention_mask": mask.to(lm.device)}
    if lm.backend == "seq2seq":
        start = lm.config.decoder_start_token_id or 0
        given["decoder_input_ids"] = torch.full_like(given["input_ids"][:, :1], start)
    with torch.no_grad(), lm.autocast():  # holds for one thread, and batches run in threads of their own
        lm.model(**given)


# --- arguments of --model_args ----------------------------------------------------------------------


def read_spec(pretrained: Any, scheme: str | None) -> Spec:
    """Return the pair of the arguments."""
    if pretrained is None:
        raise UnsupportedError(f"expected a model; got none. Name it: {EXAMPLE}")
    if not isinstance(pretrained, str):
        pretrained = getattr(pretrained, "name_or_path", "") or type(pretrained).__name__
    if scheme is None and "@" not in pretrained:
        raise UnsupportedError(
            f"expected the scheme of the candidate beside pretrained={pretrained}; got none. Name it: {EXAMPLE}, or "
            f"pretrained={pretrained}@W4-gptq"
        )
    spec = parse(pretrained) if scheme is None else Spec(model=pretrained, scheme=parse_scheme(str(scheme)))
    if spec.scheme.query_only:
        raise UnsupportedError(f"{spec.scheme} needs a search over embeddings, and lm-eval has none. Leave +query out")
    return spec


def refuse_options(options: Mapping[str, Any]) -> None:
    """Refuse arguments of lm-eval's hf model that a pair cannot have."""
    for name in _REFUSED:
        if options.get(name):
            raise UnsupportedError(
                f"{name}={options[name]}: a pair starts from a whole model at full precision, without adapters (merge "
                "them first, with merge_and_unload). Leave it out, and name the scheme"
            )


def without_output_layer(model: Any, scheme: Scheme) -> Scheme:
    """Return the scheme with +head= for the layer that gives the vocabulary's logits, if there is one.

    That layer stays at full precision like a classification head, unless the user names a head. One that is tied to
    the token embeddings is left out anyway.
    """
    get = getattr(model, "get_output_embeddings", None)
    output = get() if callable(get) else None
    if scheme.option("head") is None and output is not None:
        for layer in find_linears([model]):
            if any(module is output for module in layer.modules):
                return replace(scheme, options=(*scheme.options, ("head", layer.name)))
    return scheme
