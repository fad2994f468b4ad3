"""Trying what can be done about one model on one corpus: short trials first, whole runs of what came through.

Trials move a few gaps, on inputs that no rate is over: the root mean square of the shifts tells ways apart with far
fewer inputs than flips do. The better half of the quantizers goes on, to finer groups and more inputs, and the best of
these to widths by gap. What comes through is run on the whole corpus, with rates over held-out inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from quantdrift.ask import Ask, ensure
from quantdrift.base.errors import MissingExtraError, QuantDriftError, UnsupportedError
from quantdrift.base.progress import Progress
from quantdrift.data.images import contents_of
from quantdrift.data.labelled import ClassificationDataset, Dataset
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.engine.flow import Arms, Flow
from quantdrift.engine.inputs import Rows, Settings
from quantdrift.engine.opening import LocalModel, Opened, load_model, open_pair
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.readings import Classes, Search
from quantdrift.engine.refusals import check_pair
from quantdrift.engine.run import measured_run
from quantdrift.engine.sensitivity.allocate import choose_widths
from quantdrift.engine.sensitivity.problem import CachedArrays, GapProblem, hold_out
from quantdrift.engine.store import EmbeddingStore, digest_of, key_of
from quantdrift.features.repair.choice import (
    MORE,
    Deployment,
    Goals,
    Repair,
    Tried,
    allocated_configuration,
    check_plain,
    chosen_apart,
    deployments,
    finer_configurations,
    guided_configuration,
    uniform_configurations,
)
from quantdrift.runs.folder import Run
from quantdrift.spec.grammar import Scheme, Spec, parse
from quantdrift.stages import STAGES, Kind

STEPS = (32, 160)
"""Inputs of the trials, one step after the other."""
SHARE = 2 / 3
"""Of the queries are held out: a third to choose by, a third for what was chosen."""
ALLOCATION = "allocation.json"


@dataclass(slots=True, kw_only=True)
class Tuner:
    """One model and one corpus, and all that is tried on them.

    Attributes:
        spec: of the plain scheme.
        dataset: the data.
        model: loaded once for all.
        held: positions of the queries that rates are over; None for labelled data, where trials take the train part.
        out: folder of the runs.
        tried: what came of trials.
    """

    spec: Spec
    dataset: Dataset
    model: LocalModel
    held: Rows | None
    out: Path
    settings: Settings
    store: EmbeddingStore
    progress: Progress
    revision: str | None
    tried: list[Tried] = field(default_factory=list)
    _reference: Arms | None = None
    _problems: dict[tuple[int, bool], GapProblem] = field(default_factory=dict)
    _guides: dict[str, Sequence[Tensor | None]] = field(default_factory=dict)

    def open(self, scheme: Scheme) -> tuple[Opened, Flow]:
        """A way as a pair."""
        spec = Spec(model=self.spec.model, scheme=scheme)
        check_pair(spec, self.dataset)
        opened = open_pair(spec, self.dataset, revision=self.revision, held_out=self.held, models=(self.model, None))
        flow = Flow(pair=opened.pair, settings=self.settings, store=self.store, progress=self.progress)
        reading = opened.reading.ready(flow)
        if self.held is not None:
            n, of = len(self.held), len(reading.ids)
            told = {
                "share": SHARE,
                "seed": self.settings.seed,
                "n_queries": n,
                "of": of,
                "digest": digest_of(self._names),
            }
            reading = replace(reading, record={**reading.record, "held_out": told})
        return replace(opened, reading=reading), flow

    @property
    def _names(self) -> list[str]:
        """Of the held-out queries."""
        assert isinstance(self.dataset, RetrievalDataset)  # queries are of a search
        return [] if self.held is None else [self.dataset.query_ids[row] for row in self.held.tolist()]

    def reference(self, opened: Opened, flow: Flow) -> Arms:
        """What full precision makes of the data, once for all."""
        if self._reference is None:
            self._reference = flow.reference(opened.reading)
        return self._reference

    def problem(self, opened: Opened, flow: Flow, n: int) -> GapProblem:
        """The gaps of n inputs that no rate is over; all, where there are fewer."""
        pair, reading = opened.quantized, opened.reading
        key = (n, pair.query_only)
        if key in self._problems:
            return self._problems[key]
        rng = np.random.default_rng(self.settings.seed)
        reference: Arms
        if isinstance(reading, Search):
            assert self.held is not None  # of a search
            rows, reference = np.setdiff1d(np.arange(len(reading.queries.ids)), self.held), self.reference(opened, flow)
        else:
            assert isinstance(reading, Classes)  # rerankers are refused
            if reading.train is None:
                raise UnsupportedError(
                    f"ways are compared on inputs of the train part, never on those that are evaluated, and "
                    f"{reading.dataset} has no train part; add one"
                )
            rows, reference = np.arange(len(reading.train.ids)), ()
        chosen = np.sort(rng.permutation(rows)[:n]).astype(np.int64)
        found = reading.problem(flow, reference, chosen)
        self._problems[key] = found
        return found

    def trial(self, scheme: Scheme, n: int, bits: float) -> Tried:
        """What a way does to the gaps of n inputs; why not, where it cannot be made or takes too many bits."""
        try:
            opened, flow = self.open(scheme)
        except (MissingExtraError, UnsupportedError) as error:
            return Tried(scheme=scheme, reason=str(error))
        pair = opened.quantized
        if not pair.needs_widths and (own := pair.bits().linear_with_scales) > bits + 1e-9:
            return Tried(scheme=scheme, bits=own, reason=f"takes {own:.3f} bits, scales counted")
        problem = self.problem(opened, flow, n)
        key = key_of(
            version=1, weights=pair.fingerprint, scheme=str(scheme), on=problem.digest, runtime=dict(pair.runtime)
        )
        try:
            self.make(opened, flow)
            with pair.candidate():
                kept = CachedArrays(self.store.root, key)
                gaps = kept.get("gaps", lambda: self._gaps(problem, scheme))
        except (MissingExtraError, UnsupportedError) as error:
            return Tried(scheme=scheme, reason=str(error))
        before = problem.gaps(problem.reference_outputs())[:, 0]
        shifts = (gaps[:, 0] - before)[problem.valid[:, 0]]
        return Tried(
            scheme=scheme,
            bits=pair.bits().linear_with_scales,
            shift=float(np.sqrt(np.mean(shifts**2))),
            likely=float(np.mean(gaps[problem.valid[:, 0], 0] < 0)),
            n=len(shifts),
        )

    def _gaps(self, problem: GapProblem, scheme: Scheme) -> NDArray[np.float64]:
        with self.progress.stage(f"trial: {scheme}", problem.n_rows) as tell:
            return problem.gaps(problem.outputs(tell))

    def make(self, opened: Opened, flow: Flow) -> None:
        """Choose widths and calibrate, where the way needs that."""
        pair, reading = opened.quantized, opened.reading
        if pair.needs_widths:
            choose_widths(flow, reading, self.reference(opened, flow))
        pair.calibrate(
            reading.calibration,
            self.settings.batch_size,
            source=reading.source,
            root=self.store.root,
            progress=self.progress,
            guides=self._guides,
        )

    def ranked(self, ways: Sequence[Scheme], n: int, bits: float) -> list[Tried]:
        """Those ways that can be made, by the shift that they make, least first."""
        found = [self.trial(scheme, n, bits) for scheme in ways]
        self.tried += found
        return sorted((each for each in found if each.shift is not None), key=lambda each: each.shift or 0.0)

    def run(self, scheme: Scheme) -> Run:
        """A whole run of a way, with rates over the held-out queries; one that is there already is not made again."""
        opened, _ = self.open(scheme)
        place = self.out / str(_plain(scheme))
        settings = replace(self.settings, noise_floor=False)
        pair, allocation = opened.quantized, opened.quantized.allocation
        widths = None if allocation is None else list(allocation.width_of.values())
        ask = Ask(
            pair=replace(self.spec, scheme=_plain(scheme)),
            data=[str(opened.data["fingerprint"])],
            settings={**asdict(settings), "runtime": dict(pair.runtime)},
            part=["held out", None if self.held is None else self.held.tolist(), "widths", widths],
            models=[pair.fingerprint],
        )
        return ensure(
            ask,
            place,
            lambda key: measured_run(
                opened, out=place, settings=settings, store=self.store, progress=self.progress, cell=key
            ),
        )


def _plain(scheme: Scheme) -> Scheme:
    """The scheme without the file of an allocation: the widths in it are what counts."""
    return replace(scheme, options=tuple(each for each in scheme.options if each[0] not in {"allocation", "widths"}))


def repair_model(
    spec: Spec,
    dataset: Dataset,
    *,
    goals: Goals,
    out: Path,
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    device: str | None = None,
    revision: str | None = None,
) -> Repair:
    """Try what can be done about the answers that a scheme changes, within some bits.

    Args:
        spec: the model, and the plain scheme that is to be repaired.
        dataset: a search or labelled inputs. Of the queries a third are for trials, a third to choose a deployment by,
            and a third for the rate of what was chosen; of labelled data the train part is for trials.
        goals: what a deployment may cost.
        out: folder of the runs, and of the allocation.
        settings: how inputs are put through.
        store: where embeddings and layers are kept, so that the same command goes on.
        progress: where progress is shown.
        device: where the model runs.
        revision: of a model on the hub.
    """
    check_plain(spec.scheme)
    kind = dataset.kind if isinstance(dataset, ClassificationDataset) else None
    model = load_model(spec.model, kind, device=device, revision=revision, dtype=settings.dtype)
    held = None
    if isinstance(dataset, RetrievalDataset):
        held = hold_out([*contents_of(dataset.queries)], share=SHARE, seed=settings.seed)
    tuner = Tuner(
        spec=spec,
        dataset=dataset,
        model=model,
        held=held,
        out=out,
        settings=settings,
        store=store,
        progress=progress,
        revision=revision,
    )
    plain, flow = tuner.open(spec.scheme)
    tuner.reference(plain, flow)
    own = plain.quantized.bits()
    bits = goals.bits or own.linear_with_scales + MORE
    if own.linear_with_scales > bits + 1e-9:
        raise QuantDriftError(
            f"{spec} takes {own.linear_with_scales:g} bits a linear weight, scales counted, and {bits:g} are allowed; "
            "give more, or start from a narrower scheme"
        )
    weights = list(_weights(tuner, bits, goals))
    finalists = [spec.scheme, *weights, *_around(weights[-1], kind is None)]
    found: list[Deployment] = []
    for scheme in dict.fromkeys(finalists):
        try:
            run = tuner.run(scheme)
        except (MissingExtraError, UnsupportedError) as error:
            tuner.tried.append(Tried(scheme=scheme, reason=str(error)))
            continue
        found += deployments(scheme, run.evidence(), run.record["bits_per_weight"], str(run.path), goals)
    return Repair(
        bits=bits,
        target=goals.target,
        tried=tuner.tried,
        choice=chosen_apart(found, goals, bits, seed=settings.seed),
        n_tuned=max((each.n for each in tuner.tried), default=0),
    )


def _weights(tuner: Tuner, bits: float, goals: Goals) -> Iterator[Scheme]:
    """The best ways to make the weights: one width for all, and then, where that is better still, widths by gap."""
    few, many = STEPS
    better = tuner.ranked(uniform_configurations(tuner.spec.scheme, goals.quantizers), few, bits)
    half = [each.scheme for each in better[: -(-len(better) // 2)]]
    ranked = tuner.ranked([way for scheme in half for way in (scheme, *finer_configurations(scheme))], many, bits)
    if tuner.held is not None and (guided := guided_configuration(ranked[0].scheme)) is not None:
        ranked = sorted([*tuner.ranked([guided], many, bits), *ranked], key=lambda each: each.shift or 0.0)
    yield ranked[0].scheme
    ways: list[Scheme] = []
    for group in dict.fromkeys([ranked[0].scheme.group_size, tuner.spec.scheme.group_size]):
        same = replace(ranked[0].scheme, group_size=group)
        counted = tuner.open(same)[0].quantized.bits()
        way = allocated_configuration(same, bits - (counted.linear_with_scales - counted.linear))
        ways += [] if way is None else [way]
    allocated = tuner.ranked(ways, many, bits)
    if allocated:
        yield _stored(tuner, allocated[0].scheme)
    if not allocated or (allocated[0].shift or 0.0) > (ranked[0].shift or 0.0):
        yield ranked[0].scheme  # last is what the rest builds on


def _stored(tuner: Tuner, scheme: Scheme) -> Scheme:
    """The same with the widths in a file, which other commands take."""
    opened, flow = tuner.open(scheme)
    pair: QuantizedPair = opened.quantized
    choose_widths(flow, opened.reading, tuner.reference(opened, flow))
    assert pair.allocation is not None  # it has just been chosen
    tuner.out.mkdir(parents=True, exist_ok=True)
    file = tuner.out / ALLOCATION
    pair.allocation.write(file)
    rest = "".join(
        f"+{key}={value}" for key, value in scheme.options if key not in {"widths", "queries", "solver", "units"}
    )
    return parse(f"{tuner.spec.model}@{file}-{scheme.quantizer}{rest}").scheme


def _around(weights: Scheme, search: bool) -> Iterator[Scheme]:
    """What can be done beside the weights."""

    def tried(kind: Kind) -> list[Scheme]:
        each = [options for stage in STAGES.values() if stage.kind == kind for options in stage.tried]
        return [replace(weights, options=(*weights.options, *options.items())) for options in each]

    yield from tried("model")
    if search:
        for scheme in (weights, *tried("model")):
            yield replace(scheme, query_only=True)
        yield from tried("vectors")
