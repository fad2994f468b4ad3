"""How long calibrating a candidate and choosing its widths takes: by runs that were timed, else by a short probe."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

from quantdrift.allocation.solver import settings_of
from quantdrift.base.errors import QuantDriftError
from quantdrift.base.progress import Silent
from quantdrift.engine.calibration.in_order import LayerCandidate, quantize_in_order
from quantdrift.engine.calibration.sample import DEFAULT_SIZE, calibration_file, draw_sample
from quantdrift.engine.inputs import Inputs
from quantdrift.engine.measure import Flow, Reading
from quantdrift.engine.opening import Opened
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.quantizers.base import LayerQuantizer
from quantdrift.engine.quantizers.gptq import Gptq
from quantdrift.engine.quantizers.libraries import OPTIMUM
from quantdrift.engine.quantizers.registry import method_at
from quantdrift.engine.quantizers.rtn import RoundToNearest
from quantdrift.engine.readings import Search
from quantdrift.engine.sensitivity.allocate import allocate_for_search
from quantdrift.engine.sensitivity.problem import contenders_for, draw_queries
from quantdrift.engine.store import EmbeddingStore
from quantdrift.engine.weights import put_aside
from quantdrift.spec.grammar import Scheme, chooses, needs_inputs, parse

_PROBED = 8
"""Inputs that are run through the model to time a calibration, and queries to time a choice of widths."""
_DOCUMENTS = 64
"""Documents that these queries search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a calibration takes.

    Attributes:
        method: seconds of the quantizer, over all layers; they depend on the shapes of the layers more than on inputs.
        forward: seconds of the passes that collect what layers see, over those of encoding the same inputs.
    """

    method: float
    forward: float


@dataclass(slots=True)
class Forecast:
    """What is known of one study's times; each model and quantizer is probed once.

    Args:
        timed: records of runs that are there already.
    """

    timed: Iterable[Mapping[str, Any]] = ()
    _costs: dict[tuple[str, str], Cost] = field(default_factory=dict)
    _choices: dict[tuple[str, str], float] = field(default_factory=dict)
    _counted: set[tuple[str, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        found: dict[tuple[str, str], list[Cost]] = {}
        for record in self.timed:
            with suppress(QuantDriftError):  # an allocation that the spec names may be gone
                spec = parse(record["spec"])
                if cost := cost_of(record):
                    found.setdefault((spec.model, _kind(spec.scheme)), []).append(cost)
        for key, costs in found.items():
            middle = (median(each.method for each in costs), median(each.forward for each in costs))
            self._costs[key] = Cost(method=middle[0], forward=middle[1])

    def calibration(self, opened: Opened, flow: Flow, pace: float) -> float:
        """Seconds that calibrating a pair takes on its data, at seconds a unit of work; 0 where it needs none."""
        pair, kinds = opened.quantized, opened.reading.calibration
        if not pair.needs_calibration or not kinds:
            return 0.0
        key = (opened.name.model, _kind(pair.scheme))
        if key not in self._costs:
            self._costs[key] = _probed(pair, kinds, flow, pace)
        wanted = DEFAULT_SIZE if calibration_file(pair.scheme) else int(pair.scheme.option("calib") or DEFAULT_SIZE)
        cost = self._costs[key]
        units = sum(float(work.mean()) * min(wanted, len(work)) for work in (one.work() for one in kinds))
        return cost.method + cost.forward * pace * units

    def choice(self, opened: Opened, flow: Flow) -> float:
        """Seconds that choosing widths takes, once for all quantizers of a criterion; 0 where nothing is chosen."""
        pair, reading = opened.quantized, opened.reading
        if not (chooses(pair.scheme) and needs_inputs(pair.scheme.criterion) and isinstance(reading, Search)):
            return 0.0
        settings = settings_of(pair.scheme)
        queries = len(reading.queries.ids)
        n = len(draw_queries(queries, wanted=settings.n_queries, seed=settings.seed, held_out=reading.held_out))
        key = (opened.name.model, f"{reading.dataset} {pair.scheme.criterion}")
        if (*key, str(settings)) in self._counted:
            return 0.0  # an earlier cell measures the layers for this one too
        self._counted.add((*key, str(settings)))
        if key not in self._choices:
            self._choices[key] = _probed_choice(pair, reading, flow, n)
        return self._choices[key] * n


def _kind(scheme: Scheme) -> str:
    """What decides a quantizer's time: not the width."""
    return f"{scheme.quantizer} {scheme.granularity} {scheme.activation_bits is not None}"


def cost_of(record: Mapping[str, Any]) -> Cost | None:
    """What the calibration of a finished run took, if all of it was made in that run."""
    made, times = record.get("quantization") or {}, (record.get("times") or {}).get("seconds") or {}
    sample, data = made.get("calibration") or {}, record.get("data") or {}
    encoding = times.get("candidate: document embeddings")
    if not (made.get("seconds") and encoding and sample.get("n_inputs") and data.get("n_documents")):
        return None
    if data.get("corpus_size") or made.get("layers_kept_from_before") or sample.get("source") != "corpus":
        return None
    passes = made["seconds"] - made["seconds_in_method"]
    return Cost(
        method=made["seconds_in_method"], forward=passes / (encoding * sample["n_inputs"] / data["n_documents"])
    )


# --- probes ---------------------------------------------------------------------------------------


def _probed(pair: QuantizedPair, kinds: Sequence[Inputs], flow: Flow, pace: float) -> Cost:
    """Quantize one layer of each shape on a few inputs; the others only see what comes by."""
    scheme, layers = pair.scheme, pair.layers
    method = method_at(scheme, min(8, round(scheme.weight_bits)))
    parts = [_spread(one) for one in kinds]
    shapes = [tuple(layer.weight.shape) for layer in layers]
    chosen = {shapes.index(shape) for shape in set(shapes)}
    if isinstance(method, Gptq) and method.backend == OPTIMUM.backend:
        chosen, method = set(), None  # it takes a model whole; what it takes then is not known beforehand
    quantizers = [method if number in chosen else None for number in range(len(layers))]
    first = np.zeros(1, dtype=np.int64)
    _quantized(pair, [one.part(first) for one in parts], quantizers, flow)  # a first call takes longer
    start = time.perf_counter()
    seconds = _quantized(pair, parts, quantizers, flow)
    spent = time.perf_counter() - start
    times = Counter(shapes)
    probed = {shapes[number]: seconds[number] for number in chosen}
    return Cost(
        method=sum(each * times[shape] for shape, each in probed.items()),
        forward=max(1.0, (spent - sum(probed.values())) / (pace * sum(float(one.work().sum()) for one in parts))),
    )


def _spread(inputs: Inputs) -> Inputs:
    """A few inputs, from the shortest to the longest."""
    work = inputs.work()
    return inputs.part(np.sort(np.argsort(work, kind="stable")[:: -(-len(work) // _PROBED)]))


def _quantized(
    pair: QuantizedPair, parts: Sequence[Inputs], quantizers: Sequence[LayerQuantizer | None], flow: Flow
) -> dict[int, float]:
    """Calibrate on some inputs, and put everything back; seconds of the quantizer at each layer."""
    seconds: dict[int, float] = {}

    def done(number: int, made: LayerCandidate) -> None:
        seconds[number] = made.seconds

    sample = draw_sample(pair.encoder, parts, pair.scheme, flow.settings.batch_size)
    with put_aside(pair.layers):
        quantize_in_order(
            pair.modules,
            pair.layers,
            sample.batches,
            quantizers=quantizers,
            fallbacks=[RoundToNearest(bits=8, group_size=pair.scheme.group_size)] * len(quantizers),
            known={},
            done=done,
        )
    return seconds


def _probed_choice(pair: QuantizedPair, reading: Search, flow: Flow, n: int) -> float:
    """Seconds a query: measures the layers on a few queries among a few documents."""
    documents = reading.documents
    if documents is None:
        return 0.0
    few = min(4 * _PROBED, len(reading.queries.ids))  # of which a quarter is taken
    parts = [
        side.part(np.arange(min(size, len(side.ids)), dtype=np.int64))
        for side, size in ((reading.queries, few), (documents, _DOCUMENTS))
    ]
    small: Reading = replace(reading, queries=parts[0], documents=parts[1], rows=None, qrels=None, held_out=None)
    apart = replace(flow, store=EmbeddingStore(None), progress=Silent(), seconds={}, notes=[])
    ready = small.ready(apart)
    assert isinstance(ready, Search)  # as the reading is
    reference = [flow.run(side, np.arange(len(side.ids)), flow.settings.batch_size) for side in parts]
    start = time.perf_counter()
    chosen = allocate_for_search(apart, pair, ready, reference, n_contenders=contenders_for(n))[2]
    return (time.perf_counter() - start) / max(1, len(chosen))
