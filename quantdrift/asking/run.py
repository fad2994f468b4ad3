"""Measure a pair that is loaded and write its run folder."""

import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from quantdrift.asking.ask import libraries, names_of, parts_of
from quantdrift.asking.forecast import kept_at
from quantdrift.asking.opening import Opened
from quantdrift.base.display import note, shown
from quantdrift.base.errors import DiskError
from quantdrift.base.progress import Progress, timed
from quantdrift.base.records import write_text
from quantdrift.base.text import some
from quantdrift.builtin.sentence.work import SentenceEncoder
from quantdrift.candidate.pair import Pair
from quantdrift.measuring.flow import Flow, Measured, Reading
from quantdrift.metrics import measure as all_metrics
from quantdrift.metrics.forbids import DRAWN, forbidding
from quantdrift.models import TEXT_BY_TEXT
from quantdrift.models.inputs import Settings
from quantdrift.models.store import EmbeddingStore, digest_of, key_of, store_for
from quantdrift.runs.folder import Run, now, write_run
from quantdrift.sensitivity.allocate import choose_widths
from quantdrift.statistics.standing import Tolerances


def measured_run(
    opened: Opened, *, out: Path, settings: Settings, store: EmbeddingStore, progress: Progress, **more: Any
) -> Run:
    """Measure a pair that is loaded and write the run; `more` is added to its record."""

    def work(settings: Settings) -> Measured:
        return measure(opened.pair, opened.reading, settings=settings, store=store, progress=progress)

    with opened.closing:
        measured, settings = _in_batches_that_fit(work, settings)
        reading, evidence = measured.reading, measured.evidence
        kept = store_for(store, trusted=settings.trust_remote_code)
        place = kept_at(kept, names_of(opened.name)[0], opened.data["fingerprint"], settings)
        with suppress(DiskError):  # a note for forecasts alone
            if place is not None and measured.drawn_from is None:
                write_text(place, "", what="a note that embeddings are kept")
        record = describe_run(
            opened.name,
            opened.pair,
            measured,
            replace(settings, noise_floor=evidence.noise is not None),
            model=opened.model,
            data={**opened.data, **reading.counts, **_drawn(measured, opened.data, settings.seed)},
            reading=reading.record,
            started=opened.started,
        )
        return write_run(out, evidence=evidence, record={**record, **more}, probe=reading.probe)


def measure(pair: Pair, reading: Reading, *, settings: Settings, store: EmbeddingStore, progress: Progress) -> Measured:
    """Choose widths where a criterion does that, then measure what the candidate changes.

    Args:
        pair: the pair, with the reference in place before and after.
        reading: the inputs, and how outputs are read.
        settings: how inputs go through the models.
        store: where embeddings and calibrated layers are kept.
        progress: where progress is shown.

    Raises:
        DataError: there are no inputs, or layers were measured on all of them.
        ScoreError: an output is not finite.
        RunError: no space to keep embeddings.
    """
    flow = Flow(pair=pair, settings=settings, store=store, progress=progress)
    ready, fingerprint = flow.ready(reading), pair.fingerprint
    if ready.enough is not None:
        return flow.measure_until(ready, fingerprint, ready.enough)
    reference = flow.reference(ready, fingerprint)
    with timed(flow.seconds, "allocation") if pair.needs_widths else nullcontext():
        choose_widths(flow, ready, reference)
    return flow.measure(ready, reference, fingerprint)


def _in_batches_that_fit(work: Callable[[Settings], Measured], settings: Settings) -> tuple[Measured, Settings]:
    """Measure, halving the batch size until the batches fit into memory; return the settings too.

    The size of batches moves last digits, so each attempt puts both arms through anew: the figures are those of a run
    with that batch size from the start.
    """
    while True:
        try:
            return work(settings), settings
        except (MemoryError, torch.OutOfMemoryError):
            if settings.batch_size == 1:
                raise
        # the error holds the memory of the pass, so it is freed only here
        torch.cuda.empty_cache()
        smaller = settings.batch_size // 2
        note(f"batches of {settings.batch_size} do not fit into memory: measured in batches of {smaller}")
        settings = replace(settings, batch_size=smaller)


# --- run.json: how a run was measured, and every default metric of it -----------------------------


def _drawn(measured: Measured, data: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Describe the data of a run that stopped before its last input; they have a digest of their own."""
    if (of := measured.drawn_from) is None:
        return {}
    inputs, whole = measured.evidence.input_ids, data["fingerprint"]
    why = f"the run stopped after {len(inputs):,} of {of:,} inputs in random order (seed {seed}), when their answers"
    return {
        "fingerprint": key_of(data=whole, inputs=digest_of(map(str, inputs))),
        "drawn": {"n": len(inputs), "of": of, "seed": seed, "fingerprint": whole},
        "forbids": {DRAWN: f"{why} had settled a gate; any other rate, interval or threshold of these is biased"},
    }


def describe_run(
    spec: Any,
    pair: Any,
    measured: Any,
    settings: Settings,
    *,
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    started: str,
    reading: Mapping[str, Any],
) -> dict[str, Any]:
    """Return everything that run.json holds; `spec` names the pair, and its model as the user wrote it."""
    bits, made = pair.bits(), pair.describe()
    # the dtype stands in the pair's runtime, and trust only where code was trusted
    told_elsewhere = {"dtype"} if settings.trust_remote_code else {"dtype", "trust_remote_code"}
    said = {name: value for name, value in asdict(settings).items() if value is not None}
    how = {name: value for name, value in said.items() if name not in told_elsewhere}
    # there is no state where the harness keeps the scores
    told, times = (None, None) if measured.state is None else (measured.state.told, measured.state.times)
    forbids = {**forbidding(measured.evidence), **data.get("forbids", {})}
    notes = [note for note in on_models(pair) if settings.batch_size > 1 or not note.endswith(TEXT_BY_TEXT)]
    notes += [*data.get("warnings", ()), *measured.notes, *_on_what_is_ranked(made)]
    return {
        "spec": str(spec),
        "model": {
            "name": spec.model,
            **model,
            "fingerprint": measured.fingerprint,
            "candidate_fingerprint": measured.candidate_fingerprint,
            "layers_quantized": None if pair.layers is None else len(pair.layers),
            "layers_never_reached": pair.never_reached,
        },
        "bits_per_weight": None if bits is None else bits.to_json(),
        "quantization": made,
        **({} if told is None else {"deployment": dict(told)}),
        **({} if measured.floor is None else {"noise_floor": dict(measured.floor)}),
        "data": {
            **data,
            "inputs_left_out": measured.left_out,
            **({"forbids": forbids} if forbids else {}),
            "warnings": list(dict.fromkeys([*notes, *forbids.values()])),
        },
        "settings": {**how, **reading, **pair.runtime},
        "tolerances": asdict(Tolerances()),
        "versions": {"python": platform.python_version(), **libraries(spec)},
        **({"parts": parts} if (parts := parts_of(spec)) else {}),
        "times": {
            "started": started,
            "finished": now(),
            "seconds": dict(measured.seconds),
            **({} if times is None else {"query": dict(times)}),
        },
        "metrics": {name: estimate.to_json() for name, estimate in all_metrics(measured.evidence).items()},
    }


def on_models(pair: Any) -> list[str]:
    """Return what is to be known of a pair's models: what loading found, their number type, prompts without a role."""
    return [*pair.notes, *_on_dtype(pair), *_on_prompts(pair)]


def _on_prompts(pair: Any) -> Iterator[str]:
    """Name the models that have prompts, but none by the name of a role, so that none is used."""
    for encoder in pair.models:
        prompts = encoder.model.prompts if isinstance(encoder, SentenceEncoder) else {}
        named = [shown(name) for name, text in prompts.items() if text]
        if named and not (encoder.prompt("query") or encoder.prompt("document")):
            yield (
                f"{encoder.source.name} has the prompts {some(named)}, none of them named query or document: texts are "
                "read without one; --query-prompt NAME and --document-prompt NAME choose one"
            )


def _on_dtype(pair: Any) -> list[str]:
    """Say where full precision is less than float32, by `--dtype` or a harness."""
    dtype = str(pair.runtime.get("dtype", "float32")).removeprefix("torch.")
    if dtype == "float32":
        return []
    slow = ", and most CPUs take longer for it than for float32" if pair.runtime.get("device") == "cpu" else ""
    return [f"full precision is {dtype} here: what that rounds is in the reference too, and is not measured{slow}"]


def _on_what_is_ranked(made: Mapping[str, Any]) -> list[str]:
    """Say where the candidate was calibrated on the very documents that it ranks."""
    calibration = made.get("calibration") or {}
    n = calibration.get("n_inputs")
    if calibration.get("source") != "corpus" or n != calibration.get("of"):
        return []
    return [
        f"calibrated on all {n:,} documents, the very ones that are ranked: on other documents the "
        "candidate may change more answers. +calib=N takes fewer, +calib=FILE other texts"
    ]
