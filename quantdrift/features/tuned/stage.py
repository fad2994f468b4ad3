"""The stage `+tuned`: scales of layers, biases and norms that give the reference's scores back."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.progress import Progress
from quantdrift.engine.calibration.candidate import MadeLayers
from quantdrift.engine.calibration.in_order import put_in_place
from quantdrift.engine.calibration.inputs import plain_products
from quantdrift.engine.sensitivity.gaps import with_graph
from quantdrift.engine.stages import ModelStage
from quantdrift.engine.store import key_of
from quantdrift.engine.weights import add_tensor, saved_weights
from quantdrift.features.tuned import STAGE, descent
from quantdrift.features.tuned import problem as problems
from quantdrift.features.tuned.descent import Free, State, descend, read_state, write_state
from quantdrift.features.tuned.problem import Batch, Problem, Rows, Side, problem_of
from quantdrift.quantizers import QUANTIZERS
from quantdrift.spec.grammar import Scheme

if TYPE_CHECKING:
    from quantdrift.engine.pair import QuantizedPair

_VERSION = 2
"""Version of the tuning; another one makes what is kept void."""


class Tuned(ModelStage):
    """The tuned scales, biases and norms of a candidate."""

    def __init__(self, scheme: Scheme, pair: QuantizedPair) -> None:
        super().__init__(scheme, pair)
        problems.check_encoder(pair.encoder)
        self.steps, self.seed = (int(scheme.option(key) or 0) for key in ("tuned", "seed"))
        self._values: Mapping[nn.Parameter, Tensor] | None = None
        self._record: dict[str, Any] = {}

    def prepared(self, made: MadeLayers, *, root: Path | None, progress: Progress) -> MadeLayers:
        """Tune on the sample; return the layers with new scales.

        Raises:
            UnsupportedError: an output has no gradient.
            DataError: the sample is too small to hold some of it out.
        """
        start, pair, query_only = time.perf_counter(), self.pair, self.scheme.query_only
        problem = problem_of(pair.encoder, made.sample.inputs, query_only=query_only, seed=self.seed)
        # the scales of a number format are on a grid of their own
        scales = not QUANTIZERS[self.scheme.quantizer].widths
        free = descent.free_parameters(pair.modules, pair.layers, made.layers, scales=scales, but=pair.left_out)
        path = None
        if root is not None and made.sample.key is not None:
            key = self._key(made)
            path = root / "tuned" / key[:2] / f"{key}.safetensors"
        state = None if path is None else read_state(path, free.size)
        kept = state is not None and state.finished
        if state is None or not state.finished:
            none = State(vectors=torch.zeros(4, free.size))
            state = self._tune(problem, made, free, state or none, path=path, progress=progress)
        best = state.vectors[3].to(pair.device)
        layers = list(made.layers)
        if state.best:
            for part in free.scales:
                quantized = part.at(best).to(torch.device("cpu"))
                layers[part.number] = replace(layers[part.number], quantized=quantized, output_error=None)
        else:
            pair.notes = (*pair.notes, "+tuned lowered the loss on held-out inputs in no step, and changes nothing")
        self._values = {other.parameter: other.at(best) for other in free.others}
        seconds = time.perf_counter() - start
        self._record = {
            "steps": self.steps,
            "steps_taken": state.step,
            "best_step": state.best,
            "seed": self.seed,
            "scales": free.n_scales,
            "others": free.size - free.n_scales,
            "what": problem.what,
            "held_out": sum(len(batch[0]) for batch in problem.held_out),
            "losses": {str(step): loss for step, loss in state.losses.items()},
            "loss_before": state.losses[0],
            "loss_after": state.losses[state.best],
            "seconds": round(seconds, 3),
            "kept_from_before": kept,
            "peak_bytes": _peak(pair.device),
        }
        return replace(made, layers=layers, seconds=made.seconds + seconds)

    def _key(self, made: MadeLayers) -> str:
        """A digest of all that decides the result: layers, sample, settings and libraries."""
        digest = hashlib.blake2b(digest_size=16)
        for layer in made.layers:
            for part in () if layer.quantized is None else fields(layer.quantized):
                add_tensor(digest, f"{layer.name}.{part.name}", getattr(layer.quantized, part.name))
        settings = [descent.SCALE_RATE, descent.OTHER_RATE, problems.DOCUMENTS]
        return key_of(
            version=_VERSION,
            of=[made.of[0], dict(made.of[1]), digest.hexdigest(), made.sample.key],
            options=[self.scheme.query_only, *self.scheme.options],
            settings=settings,
        )

    def _tune(
        self, problem: Problem, made: MadeLayers, free: Free, start: State, *, path: Path | None, progress: Progress
    ) -> State:
        """Take the steps; the model is the reference again afterwards."""
        pair = self.pair
        batches = [problem.batch(np.random.default_rng([self.seed, step])) for step in range(self.steps)]
        seen = [np.unique(np.concatenate(rows)) for rows in zip(*batches, *problem.held_out, strict=True)]
        with progress.stage("reference outputs to tune for", sum(map(len, seen))) as tell:
            sides = zip(problem.sides, seen, strict=True)
            wanted = [problems.reference_outputs(side, rows, self._plain, tell) for side, rows in sides]

        def loss(batch: Batch, *, graph: bool) -> Tensor:
            exact = [known[torch.from_numpy(rows)] for known, rows in zip(wanted, batch, strict=True)]
            encode = self._graph if graph else self._plain
            outputs = [encode(side, rows) for side, rows in zip(problem.sides, batch, strict=True)]
            return problems.change(outputs, exact, unit=problem.unit)

        def look() -> float:
            with torch.no_grad():
                return float(np.mean([float(loss(batch, graph=False)) for batch in problem.held_out]))

        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            plain_products(pair.modules),
            pair.under_layers(),
            saved_weights(pair.layers),
            descent.restoring([other.parameter for other in free.others]),
            descent.slopes(pair.modules, free) as gradient,
            progress.stage("tuning scales, biases and norms", self.steps) as tell,
        ):
            for layer, of_layer in zip(pair.layers, made.layers, strict=True):
                if of_layer.quantized is not None:
                    put_in_place(layer, of_layer.quantized)
            tell(start.step)
            return descend(
                free,
                replace(start, vectors=start.vectors.to(pair.device)),
                steps=self.steps,
                gradient=lambda step: gradient(loss(batches[step], graph=True)),
                look=look,
                keep=lambda state: None if path is None else write_state(path, state),
                tell=tell,
            )

    def _plain(self, side: Side, rows: Rows) -> Tensor:
        made = self.pair.encoder.encode([side.items[row] for row in rows.tolist()], side.role, len(rows))
        return torch.from_numpy(np.array(made, dtype=np.float32)).to(self.pair.device)

    def _graph(self, side: Side, rows: Rows) -> Tensor:
        items = [side.items[row] for row in rows.tolist()]
        encode, what = self.pair.encoder.encode, "the loss that +tuned lowers"
        outputs = with_graph(
            self.pair.modules, lambda: encode(items, side.role, len(items)), what=what, instead="leave +tuned out"
        )
        return outputs.float()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, biases and norms are the tuned ones; scales are in the layers.

        Raises:
            UnsupportedError: they were tuned in another process.
        """
        if self._values is None:
            raise UnsupportedError(
                f"{self.scheme}: biases and norms were tuned in another process, and this one has the layers alone; "
                "leave +tuned out, or measure in one process"
            )
        with descent.restoring(list(self._values)):
            for parameter, value in self._values.items():
                parameter.detach().copy_(value)
            yield

    def key(self) -> None:
        """Nothing: what it does is in the weights."""

    def record(self) -> Mapping[str, Any]:
        """The steps, what is tuned, and the loss on what was held out before and after."""
        return {STAGE.part: self._record} if self._record else {}


def _peak(device: torch.device) -> int | None:
    """Bytes that the process, or the accelerator, has held at most so far; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(ImportError):  # Windows has none
        import resource  # noqa: PLC0415 -- as said

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return None
