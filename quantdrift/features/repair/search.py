"""Search for a better configuration of one model on one corpus: short trials first, then whole runs of the best.

A trial measures the shifts of some gaps, on inputs that are not used for rates: their root mean square tells
configurations apart with far fewer inputs than top-1 changes do. The better half of the quantizers is tried with finer
groups and on more inputs, and the best of these with widths by gap. The best configurations are run on the whole
corpus, with rates over held-out inputs.

Stored embeddings and indexes need no trials: the embeddings of both arms are there, so each configuration is run. What
the stages offer is tried beside the plain scheme, and then once more beside the best of all.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.record import digest
from quantdrift.asking.ask import Ask, attempted, libraries
from quantdrift.asking.ensure import ensure
from quantdrift.asking.opening import LocalModel, Opened, load_model, open_pair
from quantdrift.base.errors import DataError, MissingExtraError, QuantDriftError, UnsupportedError
from quantdrift.base.progress import OfMany, Progress
from quantdrift.builtin.weights import not_plain
from quantdrift.candidate.refusals import check_pair
from quantdrift.data.images import contents_of
from quantdrift.data.labelled import ClassificationDataset, Dataset
from quantdrift.features.repair import choice
from quantdrift.measuring.flow import Arms, Flow
from quantdrift.measuring.problem import CachedArrays, GapProblem, hold_out
from quantdrift.measuring.readings import Classes, Search
from quantdrift.models.inputs import Rows, Settings
from quantdrift.models.model import check_vectors
from quantdrift.models.store import EmbeddingStore, digest_of, key_of
from quantdrift.runs.folder import Run
from quantdrift.runs.words import duration_words
from quantdrift.scheme import Scheme
from quantdrift.sensitivity.allocate import choose_widths
from quantdrift.spec.grammar import Spec, options_of
from quantdrift.spec.remedies import remedies_of, repaired_kinds

STEPS = (32, 160)
"""Inputs of the trials in the first and in the second step."""
SHARE = 2 / 3
"""Share of the queries that are held out: a third to choose by, and a third to measure the choice on."""


@dataclass(kw_only=True)
class Tuner:
    """The search for a better configuration of one model on one corpus.

    A third of the queries are for trials, a third to choose a deployment by, and a third to measure the choice on; with
    labelled data the train part is for trials.

    Attributes:
        spec: the model with the plain scheme, which has passed `check_repairable`.
        dataset: a search or labelled inputs.
        out: folder of the runs and of the allocation.
        settings: settings of the model.
        store: store of embeddings and layers, from which the same command resumes.
        progress: where progress is shown.
        device: device of the model.
        revision: revision of a model on the hub.
        bits: the budget in bits per linear weight, scales counted; by default MORE above the plain scheme.
        stored: the budget in bytes a document; by default what the plain scheme takes.
        time: the budget of the time of a query, as a multiple of exact search; by default SLOWER times the plain
            scheme's.
        quantizers: the quantizers to try.
        thorough: whether to try slow configurations too.
        minutes: after half of them no trial is begun; after all of them no run, but for the best of the trials.
        model: the model, which is loaded once.
        held: positions of the held-out queries; None for labelled data.
        tried: the results of trials.
        left: configurations that were not begun, as the minutes were used.
        reuse: whether finished runs are taken; None for only where a change of the models' files would show.
        folder: where embeddings are for this time; None if they are kept.
        shown: the same progress, for configurations: each by its name.
    """

    spec: Spec
    dataset: Dataset
    out: Path
    settings: Settings
    store: EmbeddingStore
    progress: Progress
    device: str | None = None
    revision: str | None = None
    bits: float | None = None
    stored: float | None = None
    time: float | None = None
    quantizers: Sequence[str] = choice.TRIED
    thorough: bool = False
    minutes: float | None = None
    begun: float = field(init=False, default_factory=monotonic)
    left: set[Scheme] = field(init=False, default_factory=set)
    model: LocalModel = field(init=False)
    held: Rows | None = field(init=False, default=None)
    tried: list[choice.Tried] = field(init=False, default_factory=list)
    reuse: bool | None = field(init=False, default=None)
    folder: TemporaryDirectory[str] | None = field(init=False, default=None)
    shown: OfMany = field(init=False)

    def __post_init__(self) -> None:
        """Load the model, and hold out queries; all that is tried shares embeddings, with --no-cache for this time."""
        self.shown = OfMany(self.progress)
        if self.store.root is None:
            self.reuse, self.folder = False, TemporaryDirectory(prefix="quantdrift-")
            self.store = EmbeddingStore(Path(self.folder.name))
        means: Any = {"device": self.device, "revision": self.revision, **self.settings.loading}
        kind = None
        if isinstance(self.dataset, ClassificationDataset):
            kind, n = self.dataset.kind, len(self.dataset.test.inputs)
        else:
            self.held = hold_out([*contents_of(self.dataset.queries)], share=SHARE, seed=self.settings.seed)
            n = len(self.held)
        if n < 2:  # noqa: PLR2004 -- one in each half
            raise DataError(
                f"repair chooses on one half of the held-out inputs and measures on the other; got {n} input"
            )
        self.model = load_model(self.spec.model, kind, **means)
        if self.searches_weights:
            check_vectors(self.model, f"{self.spec}: configurations are compared")

    @property
    def searches_weights(self) -> bool:
        """Whether other quantizers, groups and widths are tried."""
        return not any(not_plain(self.spec.scheme))

    def repaired(self) -> choice.Repair:
        """Try configurations within the budget, and choose a deployment."""
        needed = self.plain[0].quantized.bits().linear_with_scales
        bits = self.bits or needed + choice.MORE
        if needed > bits + 1e-9:
            raise QuantDriftError(
                f"{self.spec} takes {needed:g} bits per linear weight, scales counted, and the budget is {bits:g}; "
                "raise it, or start from a narrower scheme"
            )
        plain, measured = self.spec.scheme, dict[Scheme, choice.Deployment]()
        self._measure([plain], measured)
        budget = self._budget(measured[plain], bits)
        weights = list(self._weights(bits)) if self.searches_weights else []
        bases = (weights if self.thorough else weights[-1:]) or [plain]
        self._measure([*weights, *(made for base in bases for made in self._around(base))], measured)
        if options_of(plain, "vectors"):
            self._measure(remedies_of(plain, "vectors"), measured)
            others = choice.apart(len(measured[plain].changed), self.settings.seed)
            seen = choice.best(choice.on_rows(~others, [*measured.values()]), budget)
            self._measure(remedies_of(seen.scheme, "vectors"), measured)
        made = choice.chosen_apart([*measured.values()], budget, tried=self.tried, seed=self.settings.seed)
        return replace(made, left=len(self.left - measured.keys()))

    def _too_late(self, scheme: Scheme, share: float = 1.0) -> bool:
        """Whether a share of the minutes is used, so that a configuration is not begun, but counted."""
        late = self.minutes is not None and monotonic() - self.begun > 60 * share * self.minutes
        self.left |= {scheme} if late else set()
        return late

    def _budget(self, plain: choice.Deployment, bits: float) -> choice.Budget:
        """What the recommended deployment may take; UnsupportedError if that is less than the plain scheme takes."""
        usual = None if plain.time is None else choice.SLOWER * plain.time
        budget = choice.Budget(bits=bits, stored=self.stored or plain.stored, time=self.time or usual)
        if not budget.has_room_for(plain):
            raise UnsupportedError(
                f"{self.spec} takes {plain.stored or 0:,.0f} bytes a document, and a query takes "
                f"{duration_words(plain.time or 1.0)}; expected --bytes and --time of no less, or a smaller scheme"
            )
        return budget

    def _measure(self, schemes: Sequence[Scheme], measured: dict[Scheme, choice.Deployment]) -> None:
        """Add the deployments of schemes that are not measured yet; one that cannot be made gets its reason."""
        for scheme in dict.fromkeys(schemes):
            failed = {trial.scheme for trial in self.tried if trial.reason is not None} - {self.spec.scheme}
            if scheme in measured or scheme in failed or (len(measured) > 1 and self._too_late(scheme)):
                continue
            try:
                run = self._run(scheme)
            except (MissingExtraError, UnsupportedError) as error:
                if scheme == self.spec.scheme:  # all others are compared with it
                    raise
                self.tried.append(choice.Tried(scheme=scheme, reason=str(error)))
                continue
            about = run.record, str(run.path)
            measured[scheme] = choice.deployment_of(scheme, run.evidence(), *about, plain=self._plain_bytes)

    @cached_property
    def _plain_bytes(self) -> float | None:
        """Bytes of a document's embedding in float32; None if none is stored, or several."""
        vectors = self.plain[0].reading.of == "vectors" if isinstance(self.plain[0].reading, Search) else False
        return 4.0 * self.reference[-1].shape[1] if vectors else None

    # --- configurations as pairs ------------------------------------------------------------------

    def _open(self, scheme: Scheme) -> tuple[Opened, Flow]:
        """Open a configuration as a pair."""
        self.shown.run = choice.named(scheme, path=False)
        spec = Spec(model=self.spec.model, scheme=scheme)
        check_pair(spec, self.dataset)
        opened = open_pair(spec, self.dataset, revision=self.revision, held_out=self.held, models=(self.model, None))
        flow = Flow(pair=opened.pair, settings=self.settings, store=self.store, progress=self.shown)
        reading = opened.reading.ready(flow)
        if self.held is not None:
            names = [reading.ids[row] for row in self.held.tolist()]
            counts = {"n_queries": len(names), "of": len(reading.ids)}
            record = {"share": SHARE, "seed": self.settings.seed, **counts, "digest": digest_of(names)}
            reading = replace(reading, record={**reading.record, "held_out": record})
        return replace(opened, reading=reading), flow

    @cached_property
    def plain(self) -> tuple[Opened, Flow]:
        """The plain scheme as a pair."""
        return self._open(self.spec.scheme)

    @cached_property
    def reference(self) -> Arms:
        """The outputs of full precision, computed once."""
        opened, flow = self.plain
        return flow.reference(opened.reading)

    def _run(self, scheme: Scheme) -> Run:
        """Run a configuration on the whole corpus, with rates over the held-out queries; an existing run is reused."""
        opened, _ = self._open(scheme)
        of_widths = {"allocation", "widths"}  # the fingerprint has the widths themselves
        of_widths = of_widths if scheme.option("allocation") else set()
        named = replace(scheme, options=tuple(option for option in scheme.options if option[0] not in of_widths))
        place = self.out / str(named).replace("/", "_")
        settings = replace(self.settings, noise_floor=False)
        pair, allocation = opened.quantized, opened.quantized.allocation
        widths = None if allocation is None else list(allocation.width_of.values())
        ask = Ask(
            pair=replace(self.spec, scheme=named),
            data=[str(opened.data["fingerprint"]), opened.reading.record.get("own_ids")],
            settings={**asdict(settings), "runtime": dict(pair.runtime)},
            part=["held out", None if self.held is None else self.held.tolist(), widths],
            models=[key_of(weights=pair.fingerprint, reads=[self.model.key(role) for role in ("query", "document")])],
        )
        means: Any = {"settings": settings, "store": self.store, "progress": self.shown}
        with self._attempted(scheme):
            return ensure(ask, place, **means, opened=lambda: opened, reuse=self.reuse)

    # --- trials -----------------------------------------------------------------------------------

    def _problem(self, n: int) -> GapProblem:
        """The gaps of at most n inputs that are not used for rates."""
        opened, flow = self.plain
        reading, rng = opened.reading, np.random.default_rng(self.settings.seed)
        if isinstance(reading, Search):
            assert self.held is not None  # it is a search
            rows, reference = np.setdiff1d(np.arange(len(reading.queries.ids)), self.held), self.reference
        else:
            assert isinstance(reading, Classes)  # rerankers are refused
            if reading.train is None:
                raise UnsupportedError(
                    f"configurations are compared on inputs of the train part, never on those that are evaluated, and "
                    f"{reading.dataset} has no train part; add one"
                )
            rows, reference = np.arange(len(reading.train.ids)), ()
        return reading.problem(flow, reference, np.sort(rng.permutation(rows)[:n]).astype(np.int64))

    def _trial(self, scheme: Scheme, problem: GapProblem, bits: float) -> choice.Tried:
        """Try a configuration on some gaps; one that cannot be made, or takes too many bits, gets its reason."""
        reference = self.reference
        try:
            with self._attempted(scheme):
                opened, flow = self._open(scheme)
                pair = opened.quantized
                if not pair.needs_widths and (needed := pair.bits().linear_with_scales) > bits + 1e-9:
                    return choice.Tried(scheme=scheme, bits=needed, reason=f"takes {needed:.3f} bits, scales counted")
                choose_widths(flow, opened.reading, reference)
                flow.calibrate(opened.reading)
                with pair.candidate():
                    weights = pair.candidate_fingerprint()
                    key = key_of(version=2, weights=weights, on=problem.digest, runtime=dict(pair.runtime))
                    gaps = CachedArrays(self.store.root, key).get("gaps", lambda: self._gaps(problem, scheme))[:, 0]
        except (MissingExtraError, UnsupportedError) as error:
            return choice.Tried(scheme=scheme, reason=str(error))
        valid = problem.valid[:, 0]
        shifts = (gaps - problem.gaps(problem.reference_outputs())[:, 0])[valid]
        return choice.Tried(
            scheme=scheme,
            bits=pair.bits().linear_with_scales,
            shift=float(np.sqrt(np.mean(shifts**2))),
            likely=float(np.mean(gaps[valid] < 0)),
            n=len(shifts),
        )

    def _attempted(self, scheme: Scheme) -> AbstractContextManager[None]:
        """A block in which a configuration is tried or run, which may kill the process."""
        spec = replace(self.spec, scheme=scheme)
        key = key_of(spec=str(spec), data=self.dataset.fingerprint, libraries=libraries(spec))
        return attempted(self.out / ".running" / key, key)

    def _gaps(self, problem: GapProblem, scheme: Scheme) -> NDArray[np.float64]:
        with self.progress.stage(f"trial: {scheme}", problem.n_rows) as tell:
            return problem.gaps(problem.outputs(tell))

    def _ranked(self, schemes: Sequence[Scheme], problem: GapProblem, bits: float) -> list[choice.Tried]:
        """Try configurations, and sort those that can be made by their shifts, smallest first."""
        trials = [self._trial(scheme, problem, bits) for scheme in schemes if not self._too_late(scheme, share=0.5)]
        self.tried += trials
        return sorted((trial for trial in trials if trial.shift is not None), key=lambda trial: trial.shift or 0.0)

    # --- configurations to try --------------------------------------------------------------------

    def _weights(self, bits: float) -> Iterator[Scheme]:
        """The best configurations of the weights, with one width and with widths by gap; the best of all is last."""
        few, many = map(self._problem, STEPS)
        better = self._ranked(choice.uniform_configurations(self.spec.scheme, self.quantizers), few, bits)
        if not better and self.left:
            return
        if not better:
            raise UnsupportedError(f"no quantizer can be tried: {self.tried[0].scheme}: {self.tried[0].reason}")
        half = [trial.scheme for trial in better[: -(-len(better) // 2)]]
        finer = [grouped for scheme in half for grouped in (scheme, *choice.finer_configurations(scheme))]
        ranked = self._ranked(finer, many, bits) or better
        best = ranked[0]
        if self.thorough:  # the best of every group size
            yield from {trial.scheme.group_size: trial.scheme for trial in reversed(ranked)}.values()
        yield best.scheme
        schemes = []
        for group in dict.fromkeys([best.scheme.group_size, self.spec.scheme.group_size]):
            same = replace(best.scheme, group_size=group)
            counted = self._open(same)[0].quantized.bits()
            schemes.append(choice.allocated_configuration(same, bits - (counted.linear_with_scales - counted.linear)))
        allocated = self._ranked([scheme for scheme in schemes if scheme is not None], many, bits)
        if allocated:
            yield self._stored(allocated[0].scheme)
        if not allocated or (allocated[0].shift or 0.0) > (best.shift or 0.0):
            yield best.scheme  # the last is combined with further stages

    def _stored(self, scheme: Scheme) -> Scheme:
        """Write the widths of a configuration into a file, which other commands take."""
        opened, flow = self._open(scheme)
        choose_widths(flow, opened.reading, self.reference)
        allocation = opened.quantized.allocation
        assert allocation is not None  # it has just been chosen
        self.out.mkdir(parents=True, exist_ok=True)
        file = self.out / f"allocation-{digest(allocation)[:8]}.json"  # one file for each corpus
        allocation.write(file)
        return replace(scheme, options=(*scheme.options, ("allocation", str(file))))

    def _around(self, weights: Scheme) -> Iterator[Scheme]:
        """Combine a configuration of the weights with further stages."""
        kinds = repaired_kinds(self.spec.scheme)
        of_model = remedies_of(weights, *(kind for kind in kinds if kind != "vectors"))
        if self.searches_weights:
            of_model = [*choice.staged_configurations(weights, "model", thorough=self.thorough), *of_model]
        yield from of_model
        if self.held is None:
            return
        if self.searches_weights:
            for scheme in (weights, *of_model):
                yield replace(scheme, query_only=True)
            yield from choice.staged_configurations(weights, "vectors", thorough=self.thorough)
        yield from remedies_of(weights, "vectors")
