"""A reference and a candidate, one of which is in place at a time.

A quantized candidate is made in place and undone: full-precision weights are put aside, quantized ones take their
place, and on leaving they come back bit for bit. So a pair needs the memory of one model. A checkpoint of somebody
else, or a model on a server, is a second model.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from quantdrift.allocation.record import Allocation
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.progress import Progress
from quantdrift.base.records import bytes_digest
from quantdrift.builtin.classifier.work import Classifier
from quantdrift.builtin.cross_encoder.work import CrossEncoderModel
from quantdrift.candidate.calibration.candidate import make_layers, summary, widths_for
from quantdrift.candidate.calibration.in_order import LayerCandidate, MadeLayers, put_in_place
from quantdrift.candidate.calibration.sample import Sample, draw_sample
from quantdrift.candidate.quantized import LayerQuantizer
from quantdrift.candidate.refusals import refuse_missing_library, refuse_settings
from quantdrift.candidate.stages import model_stages
from quantdrift.candidate.tried import try_parts
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.kinds.stage import STAGES
from quantdrift.models.bits import BitsReport, StoredBits, count_bits, not_quantized
from quantdrift.models.heads import quantizable_layers
from quantdrift.models.inputs import Inputs
from quantdrift.models.layers import WeightUse, find_linears
from quantdrift.models.loading import refuse_unfit_tokenizer
from quantdrift.models.model import EmbeddingModel
from quantdrift.models.server import EndpointEncoder
from quantdrift.models.weights import runtime_of, saved_weights, weights_fingerprint
from quantdrift.scheme import FULL_BITS, POSSIBLE_BITS, Scheme
from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.stages import VectorStage, vector_stages
from quantdrift.spec.grammar import at_width, calibrates, parse_scheme

Arm = Literal["reference", "candidate"]
Model = EmbeddingModel | Classifier | CrossEncoderModel | EndpointEncoder
"""One of two models: loaded here, from a checkpoint, or on a server."""


class QuantizedPair:
    """A model that can be its own quantized candidate.

    >>> model = nn.Linear(8, 4)
    >>> pair = QuantizedPair(model, "W4-rtn")
    >>> with pair.candidate():  # its weights have 4 bits here
    ...     levels = len(model.weight[0].unique())
    >>> levels <= 16
    True

    Attributes:
        name: name of the model.
        scheme: the scheme of the candidate.
        modules: the outermost torch modules of the model.
        layers: the linear layers that are quantized, without a classification head.
        left_out: names of the linear layers that are not quantized, to the reasons.
        allocation: the allocation that a criterion chose, or None.
        stages: the stages that change the candidate's model beside the weights of these layers, by name.
        vector_stages: the stages between the candidate's embeddings and the results of a search; none for exact search
            in float32.
        made: the calibrated layers; None if there are none.
        encoder: runs the model when the pair is measured; callers may replace it.
        notes: sentences about the model for the output of a run.
        query_only: whether documents stay at the reference.
        needs_calibration: whether the candidate depends on calibration inputs, which `prepare` then needs.
        by_batch: whether the candidate's result for an input can depend on the other inputs of its batch.
    """

    def __init__(
        self,
        modules: nn.Module | Sequence[nn.Module],
        scheme: Scheme | str,
        *,
        name: str = "model",
        encoder: Any = None,
    ) -> None:
        """Find the layers and check that the scheme can be made.

        Args:
            modules: the model, or its outermost torch modules.
            scheme: the scheme of the candidate, e.g. "W4-rtn".
            name: name of the model, for messages.
            encoder: runs the model, if the pair is measured.

        Raises:
            SpecError: the scheme does not parse.
            UnsupportedError: the scheme is not available, there is nothing to quantize, or the model's tokenizer is
                missing.
            UnknownNameError: the scheme names a head that the model does not have.
            MissingExtraError: the library that quantizes is not installed.
            DataError: the scheme names an allocation of another model.
        """
        scheme = parse_scheme(scheme) if isinstance(scheme, str) else scheme
        self._methods = methods_of(scheme)
        # a SentenceTransformer is a module and a sequence of its parts
        self.modules = [modules] if isinstance(modules, nn.Module) else list(modules)
        if wrong := [part for part in self.modules if not isinstance(part, nn.Module)]:
            raise UnsupportedError(f"expected a torch module or a list of them; got {type(wrong[0]).__name__}")
        for module in self.modules:
            refuse_unfit_tokenizer(module, name)
        self.name, self.scheme, self.encoder = name, scheme, encoder
        self.query_only, self.needs_calibration = scheme.query_only, calibrates(scheme)
        self.by_batch = any(stage.in_(scheme) and stage.depends_on_batch(scheme) for stage in STAGES.values())
        self.notes: tuple[str, ...] = tuple(getattr(encoder, "notes", ()))
        self.layers, self.left_out = quantizable_layers(self.modules, name, scheme)
        self.stages = model_stages(scheme, self)
        reached = {name for stage in self.stages.values() for name in stage.reaches}
        self.left_out = {layer: why for layer, why in self.left_out.items() if layer not in reached}
        self.allocation: Allocation | None = None
        self._widths = [*self._methods] * len(self.layers) if scheme.criterion is None else None
        self._for_all_data = True
        self.vector_stages = vector_stages(scheme)
        self.made: MadeLayers | None = None
        self._reached: set[str] = set()
        self._active = False
        if (stored := stored_allocation(scheme)) is not None:
            widths = widths_for(stored, self.layers, scheme, self.fingerprint)
            self.choose(widths, by=stored)
        methods = [method for method in self._methods.values() if method is not None]
        try_parts(scheme, encoder, self.stages, methods)

    @property
    def models(self) -> tuple[Any, ...]:
        """The models of both arms."""
        return (self.encoder,)

    @property
    def similarity(self) -> Similarity:
        """The similarity by which the model compares embeddings."""
        return Similarity(self.encoder.similarity)

    def identify(self) -> dict[str, Any]:
        """Return the origin of the model for the record of a run, as JSON values."""
        rows = {} if getattr(self.encoder, "one_vector", True) else {"one_vector": False}
        return {"canonical": self.encoder.source.canonical, "kind": self.encoder.source.kind, **rows}

    @property
    def needs_widths(self) -> bool:
        """Whether widths still have to be chosen, for the first time or for other data."""
        return self._widths is None or not self._for_all_data

    def choose(self, widths: Sequence[int], *, by: Allocation | None = None, for_all_data: bool = True) -> None:
        """Give every layer its width; earlier calibration becomes void.

        Args:
            widths: one per layer: 2 to 8 bits, or 16, which leaves its weight alone. A layer with a fixed width may
                have one that the scheme does not offer.
            by: the allocation that they come from, to be recorded.
            for_all_data: whether they stay; False lets the next measurement choose again.

        Raises:
            RuntimeError: the candidate is in place.
            UnsupportedError: the scheme has one width for all layers, the quantizer lacks one of these widths, or their
                number is not that of the layers.
        """
        self._at_rest("choosing widths")
        uniform, n_layers = self.scheme.criterion is None, len(self.layers)
        if uniform or not POSSIBLE_BITS.issuperset(widths) or len(widths) != n_layers:
            several = "layers of one width" if uniform else f"{n_layers} layers of 2 to 8 bits, or 16"
            raise UnsupportedError(f"{self.scheme} has {several}; got {len(widths)} widths, {sorted(set(widths))}")
        for bits in {*widths} - {*self._methods}:
            self._methods[bits] = method_at(self.scheme, bits)
        self._widths, self.made = list(widths), None
        self.allocation, self._for_all_data = by, for_all_data

    @property
    def fingerprint(self) -> str:
        """Digest of the full-precision weights.

        Raises:
            RuntimeError: the candidate is in place.
        """
        self._at_rest("asking for the fingerprint, which is of the reference")
        return weights_fingerprint(self.modules)

    def candidate_fingerprint(self) -> str:
        """Return the digest of the candidate's weights, input ranges and other stages; only inside `candidate()`."""
        if not self._active:
            raise RuntimeError("there is no candidate outside candidate()")
        keys = {name: key for name, stage in self.stages.items() if (key := stage.key()) is not None}
        brought = STAGES.versions(*(STAGES[name] for name in keys))  # another version may compute other things
        parts = [weights_fingerprint(self.modules), *keys.values(), *chain(*brought.items())]
        return parts[0] if len(parts) == 1 else bytes_digest(" ".join(parts).encode(), size=16)

    @property
    def weight(self) -> torch.Tensor:
        """A weight of the model, which has its device and number type; a static model has no linear layer."""
        return self.layers[0].parameter if self.layers else next(self.modules[0].parameters())

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.weight.device

    @property
    def runtime(self) -> dict[str, str]:
        """The libraries, device and number type, which decide embeddings beside weights and inputs."""
        return runtime_of(self.weight)

    @property
    def never_reached(self) -> list[str]:
        """Names of the layers that no observed forward pass used; all of them before the first pass."""
        # a few texts do not reach every expert of a mixture
        mixtures = {layer.inside for layer in self.layers if layer.name in self._reached and layer.expert is not None}
        return [x.name for x in self.layers if x.name not in self._reached and x.inside not in mixtures]

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Observe which layers the forward passes inside use."""
        with ExitStack() as stack:
            for stage in self.stages.values():
                stack.enter_context(stage.observed())
            use = stack.enter_context(WeightUse(self.layers))
            yield
        self._reached |= use.used

    def calibrate(
        self, inputs: Sequence[Inputs], batch_size: int, *, source: str, root: Path | None, progress: Progress
    ) -> None:
        """Draw a sample of inputs and `prepare` with it, if the scheme needs that."""
        if self.needs_calibration:
            sample = draw_sample(self.encoder, inputs, self.scheme, batch_size, source=source)
            self.prepare(sample, root=root, progress=progress)

    def prepare(self, sample: Sample, *, root: Path | None, progress: Progress) -> None:
        """Quantize the layers on calibration inputs; afterwards the model is the reference again.

        Nothing happens if the scheme needs no calibration or was prepared on the same inputs.

        Args:
            sample: calibration inputs.
            root: folder to keep finished layers in, so that none is made twice; None keeps nothing.
            progress: display of progress.

        Raises:
            RuntimeError: the candidate is in place.
            QuantDriftError: the method cannot quantize a layer, widths have not been chosen, or the disk is full.
        """
        self._at_rest("calibrating")
        if not self.needs_calibration:
            return
        of, made, widths = (self.fingerprint, self.runtime), self.made, self._chosen()
        if made is not None and sample.key and made.sample.key == sample.key and made.of == of:
            return
        self.made = None
        methods = [self._methods[bits] for bits in widths]
        with self.under_layers():  # their outputs are inputs of the layers
            made = make_layers(
                self.scheme,
                self.modules,
                self.layers,
                methods,
                widths,
                sample=sample,
                of=of,
                root=root,
                progress=progress,
            )
        for stage in self.stages.values():
            made = stage.prepared(made, root=root, progress=progress)
        self.made = made

    @contextmanager
    def candidate(self) -> Iterator[None]:
        """Inside, the model is the candidate; on leaving, it is the reference again, bit for bit.

        Raises:
            RuntimeError: the candidate is in place already.
            UnsupportedError: the scheme needs calibration and was not prepared, or widths have not been chosen.
        """
        with ExitStack() as stack:
            stack.enter_context(saved_weights(self.layers))
            stack.enter_context(self.under_layers())
            for layer, made in zip(self.layers, self.candidate_layers(), strict=True):
                if made.quantized is not None:
                    put_in_place(layer, made.quantized)
            stack.enter_context(self.under_layers(False))
            self._active = True
            stack.callback(setattr, self, "_active", False)
            yield

    @contextmanager
    def under_layers(self, under: bool = True) -> Iterator[None]:
        """Inside, the stages that linear layers are calibrated with are in place, or all others if `under` is False."""
        with ExitStack() as stack:
            for name, stage in self.stages.items():
                if STAGES[name].before_layers is under:
                    stack.enter_context(stage.applied())
            yield

    @property
    def batch_size(self) -> int | None:
        """Batch size of the candidate; None if it is the reference's."""
        return next((size for stage in self.stages.values() if (size := stage.batch_size) is not None), None)

    def candidate_layers(self) -> Iterator[LayerCandidate]:
        """Yield the candidate of each layer, made one after another from the reference's weights.

        Raises:
            RuntimeError: the candidate is in place.
            UnsupportedError: the scheme needs calibration and was not prepared.
        """
        self._at_rest("making it again")
        widths = self._chosen()
        if self.made is not None:
            yield from self.made.layers
            return
        if self.needs_calibration:
            raise UnsupportedError(
                f"{self.scheme} of {self.name} is calibrated on documents, and none were given "
                "yet; call prepare(...) first, or use a data-free scheme (rtn or hqq, without A8 or with +act=token)"
            )
        for layer, bits in zip(self.layers, widths, strict=True):
            method = self._methods[bits]
            quantized = None if method is None else method.quantize(layer.weight, None)
            yield LayerCandidate(name=layer.name, quantized=quantized)

    def take(self, layers: Sequence[LayerCandidate]) -> None:
        """Take layers that another process has calibrated for the same weights."""
        self._at_rest("taking layers")
        sample = Sample(batches=[], key=None, record={})
        of = (self.fingerprint, self.runtime)
        self.made = MadeLayers(layers=list(layers), sample=sample, of=of, seconds=0.0, kept=len(layers))

    def _at_rest(self, before: str) -> None:
        if self._active:
            raise RuntimeError(f"the candidate is in place; leave candidate() before {before}")

    def _chosen(self) -> list[int]:
        """Return the width of every layer."""
        if self._widths is None:
            raise UnsupportedError(
                f"the criterion of {self.scheme} chooses the layers' widths, and that has not "
                "been done; call choose(...) first"
            )
        return self._widths

    def bits(self, widths: Sequence[int] | None = None) -> BitsReport:
        """Return bits per weight of the candidate, or of other widths."""
        overhead = QUANTIZERS[self.scheme.quantizer].overhead_bits
        return count_bits(
            self.modules,
            self.layers,
            self._chosen() if widths is None else widths,
            scale_bits=lambda rows, columns: overhead(rows, columns, self.scheme.group_size),
            beside=self._beside(),
        )

    def _beside(self) -> list[StoredBits]:
        return [stored for stage in self.stages.values() for stored in stage.bits()]

    def describe(self) -> dict[str, Any]:
        """Describe the quantization of the candidate for the record of a run, as JSON values."""
        described: dict[str, Any] = {"quantizer": self.scheme.quantizer}
        methods = [method for method in self._methods.values() if method is not None]
        for quantizer in methods[:1]:  # the others only differ in width
            described |= quantizer.describe()
        if self.allocation is not None:
            described["allocation"] = summary(self.allocation)
        described["layers_left_out"] = dict(self.left_out)
        described["not_quantized"] = not_quantized(self.modules, self.layers, self._beside())
        if self.made is not None:
            described |= self.made.describe()
        for stage in self.stages.values():
            described |= stage.record()
        return described


class TwoModels:
    """Two models, one of which is in place at a time, with the interface of a `QuantizedPair`.

    There are no widths to choose and nothing to calibrate.

    Attributes:
        models: the reference and the candidate.
        encoder: the one that is in place.
        layers: names of the candidate's quantized layers; None if unknown.
        bits: returns bits per weight of the candidate; None if unknown.
        describe: describes the candidate, as JSON values for the record of a run.
    """

    query_only = needs_widths = needs_calibration = False
    allocation: Allocation | None = None
    vector_stages: Sequence[VectorStage] = ()
    batch_size: int | None = None

    def __init__(self, reference: Model, candidate: Model, *, device: torch.device) -> None:
        """Pair two models, which both keep their weights."""
        self.reference, self.candidate_model, self.device = reference, candidate, device
        self.models, self.encoder, self.layers = (reference, candidate), reference, candidate.layers
        self.by_batch, self.bits, self.describe = candidate.by_batch, candidate.bits, candidate.describe
        self.similarity: Similarity = reference.similarity or candidate.similarity or Similarity.COSINE
        self._linears = find_linears(reference.modules)
        self._reached: set[str] = set()

    def identify(self) -> dict[str, Any]:
        """Return the origin of both models for the record of a run, as JSON values."""
        return {**self.reference.identify(), "candidate": self.candidate_model.identify()}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on both models."""
        return (*self.reference.notes, *self.candidate_model.notes)

    @property
    def never_reached(self) -> list[str] | None:
        """Names of the reference's layers that are packed in the candidate and that no observed pass used."""
        if self.layers is None or not self.reference.modules:
            return None
        # sentence-transformers keeps a transformer in 0.model
        names = {layer.name: layer.name.split(".", 2)[-1] for layer in self._linears}
        return [name for name, inner in names.items() if inner in self.layers and name not in self._reached]

    @property
    def fingerprint(self) -> str:
        """Digest of the reference."""
        return self.reference.fingerprint

    def candidate_fingerprint(self) -> str:
        """Digest of the candidate."""
        return self.candidate_model.fingerprint

    @property
    def runtime(self) -> dict[str, str]:
        """The libraries, device and number type of the model that is in place."""
        return self.encoder.runtime

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Observe which layers of the reference the forward passes inside use."""
        with WeightUse(self._linears) as use:
            yield
        self._reached |= use.used

    def calibrate(
        self, inputs: Sequence[Inputs], batch_size: int, *, source: str, root: Path | None, progress: Progress
    ) -> None:
        """Do nothing: the candidate is finished."""

    @contextmanager
    def candidate(self) -> Iterator[None]:
        """Inside, the candidate is in place; on leaving, the reference."""
        if self.encoder is self.candidate_model:
            raise RuntimeError("the candidate is in place already")
        self.encoder = self.candidate_model
        try:
            with redirect_stdout(sys.stderr):  # kernels print at the first call
                yield
        finally:
            self.encoder = self.reference


Pair = QuantizedPair | TwoModels


# --- the methods of a scheme; a method's module is loaded when it is needed -------------------------


def methods_of(scheme: Scheme) -> dict[int, LayerQuantizer | None]:
    """Map every width that the scheme's layers may have to its method; 16 bits to None."""
    refuse_settings(scheme)
    refuse_missing_library(scheme)
    methods = {bits: method_at(scheme, bits) for bits in scheme.widths}
    stored_allocation(scheme)  # read early, as errors would otherwise come after the reference has run
    return methods


def method_at(scheme: Scheme, bits: int) -> LayerQuantizer | None:
    """Return the method of a scheme at another width; None for 16 bits."""
    if bits == FULL_BITS:
        return None
    method: LayerQuantizer = QUANTIZERS[scheme.quantizer].method(at_width(scheme, bits))
    return method


def stored_allocation(scheme: Scheme) -> Allocation | None:
    """Read the allocation that `+allocation=` names; None without that option."""
    given = scheme.option("allocation")
    return None if given is None else Allocation.read(Path(given).expanduser())
