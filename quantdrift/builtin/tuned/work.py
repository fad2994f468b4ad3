"""The stage `+tuned`: scales and codes of layers, biases and norms that give the reference's scores back."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.progress import Progress
from quantdrift.builtin.tuned import STAGE, descent
from quantdrift.builtin.tuned import problem as problems
from quantdrift.builtin.tuned.descent import Free, Other, State, descend, free_parameters, read_state, write_state
from quantdrift.builtin.tuned.problem import Batch, Outputs, Problem, Rows, Side, problem_of
from quantdrift.candidate.calibration.in_order import MadeLayers
from quantdrift.candidate.calibration.inputs import plain_products
from quantdrift.candidate.stages import ModelStage, StagedModel
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.models.store import key_of
from quantdrift.models.weights import add_tensor
from quantdrift.scheme import Scheme
from quantdrift.sensitivity.gaps import with_graph

_VERSION = 6
"""Version of the tuning; another one makes what is kept void."""
_PARTS = 4
"""Parts in which a CPU takes a side's inputs: two fifths of a step were padding; an accelerator takes all at once."""


class Tuned(ModelStage):
    """The tuned scales, codes, biases and norms of a candidate."""

    def __init__(self, scheme: Scheme, pair: StagedModel) -> None:
        super().__init__(scheme, pair)
        problems.check_encoder(pair.encoder)
        self.steps, self.seed = (int(scheme.option(key) or 0) for key in ("tuned", "seed"))
        self._values: list[tuple[Other, Tensor]] | None = None
        self._record: dict[str, Any] = {}

    def prepared(self, made: MadeLayers, *, root: Path | None, progress: Progress) -> MadeLayers:
        """Tune on the sample; return the layers with new scales and codes.

        Raises:
            UnsupportedError: an output has no gradient.
            DataError: the sample is too small to hold some of it out.
        """
        start, pair, query_only = time.perf_counter(), self.pair, self.scheme.query_only
        problem = problem_of(pair.encoder, made.sample.inputs, query_only=query_only, seed=self.seed)
        # the scales of a number format are on a grid of their own
        scales, codes = not QUANTIZERS[self.scheme.quantizer].widths, self.steps >= descent.FEWEST
        free = free_parameters(pair.modules, pair.layers, made.layers, scales=scales, codes=codes, but=pair.left_out)
        path = None
        if root is not None and made.sample.key is not None:
            key = self._key(made, problem)
            path = root / "tuned" / key[:2] / f"{key}.safetensors"
        state = None if path is None else read_state(path, free.size)
        kept = state is not None and state.finished
        if state is None or not state.finished:
            state = self._tune(problem, free, state or State(vectors=free.start()), path=path, progress=progress)
        best = state.vectors[3].to(pair.device)
        layers, moved = list(made.layers), 0
        if state.best:
            for number, part in free.weights.items():
                quantized = part.at(best)
                moved += int((quantized.codes != part.quantized.codes).sum())
                layers[number] = replace(layers[number], quantized=quantized.to(torch.device("cpu")), output_error=None)
        else:
            pair.notes = (*pair.notes, "+tuned lowered the loss on held-out inputs in no step, and changes nothing")
        self._values = [(other, other.at(best)) for other in free.others]
        seconds = time.perf_counter() - start
        self._record = {
            "steps": self.steps,
            "steps_taken": state.step,
            "best_step": state.best,
            "seed": self.seed,
            "scales": sum(part.n_scales for part in free.weights.values()),
            "codes": sum(part.n_codes for part in free.weights.values()),
            "codes_moved": moved,
            "others": sum(len(part.exact) for part in free.others),
            "what": problem.what,
            "held_out": sum(len(batch[0]) for batch in problem.held_out),
            "losses": {str(step): loss for step, loss in state.losses.items()},
            "loss_before": state.losses[0],
            "loss_after": state.losses[state.best],
            "seconds": round(seconds, 3),
            "kept_from_before": kept,
        }
        return replace(made, layers=layers, seconds=made.seconds + seconds)

    def _key(self, made: MadeLayers, problem: Problem) -> str:
        """A digest of all that decides the result: layers, sample, settings and libraries."""
        digest = hashlib.blake2b(digest_size=16)
        for layer in made.layers:
            for part in () if layer.quantized is None else fields(layer.quantized):
                add_tensor(digest, f"{layer.name}.{part.name}", getattr(layer.quantized, part.name))
        return key_of(
            version=_VERSION,
            of=[made.of[0], dict(made.of[1]), digest.hexdigest(), made.sample.key],
            options=[self.scheme.query_only, *self.scheme.options, problem.unit],
            prompts=[self.pair.encoder.key(side.role) for side in problem.sides],
            settings=[descent.SCALE_RATE, descent.OTHER_RATE, descent.CODE_RATE, problems.DOCUMENTS],
        )

    def _tune(self, problem: Problem, free: Free, start: State, *, path: Path | None, progress: Progress) -> State:
        """Take the steps; the model is the reference again afterwards."""
        pair, start = self.pair, replace(start, vectors=start.vectors.to(self.pair.device))
        numbers = start.vectors[0]  # descend changes them in place

        def gradient(step: int) -> Tensor:
            batch = problem.batch(np.random.default_rng([self.seed, step]))
            free.put(None)
            exact, inside = outputs(self._plain, batch)
            free.put(numbers)
            made, moved = outputs(self._graph, batch)
            return slope_of(problems.change(made, exact, unit=problem.unit) + problems.change_inside(moved, inside))

        def outputs(encode: Callable[[Side, Rows], Tensor], batch: Batch) -> Outputs:
            made, inside = [], []
            for side, rows in zip(problem.sides, batch, strict=True):
                parts, seen = [], []
                for part in side.parts(rows, _PARTS if pair.device.type == "cpu" else 1):
                    with problems.seen_inside(pair.modules, pair.layers) as within:
                        parts.append(encode(side, part))
                    seen.append(within)
                made.append(torch.cat(parts))
                inside.append(seen)
            return made, inside

        def look() -> float:
            made = [outputs(self._plain, batch)[0] for batch in problem.held_out]
            losses = [problems.change(*both, unit=problem.unit) for both in zip(made, wanted, strict=True)]
            return float(torch.stack(losses).mean())

        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            plain_products(pair.modules),
            pair.under_layers(),
            descent.slopes(pair.modules, free, numbers) as slope_of,
            progress.stage("tuning what costs no bit", self.steps) as tell,
            ExitStack() as stack,
        ):
            stack.callback(free.put, None)
            wanted = [outputs(self._plain, batch)[0] for batch in problem.held_out]
            tell(start.step)
            return descend(
                free,
                start,
                steps=self.steps,
                gradient=gradient,
                look=look,
                keep=lambda state: None if path is None else write_state(path, state),
                tell=tell,
            )

    def _plain(self, side: Side, rows: Rows) -> Tensor:
        with torch.no_grad():
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
        """Inside, biases and norms are the tuned ones; scales and codes are in the layers.

        Raises:
            UnsupportedError: they were tuned in another process.
        """
        if self._values is None:
            raise UnsupportedError(
                f"{self.scheme}: biases and norms were tuned in another process, and this one has the layers alone; "
                "leave +tuned out, or measure in one process"
            )
        try:
            for other, value in self._values:
                other.parameter.detach().copy_(value)
            yield
        finally:
            for other, _ in self._values:
                other.put(None)

    def key(self) -> None:
        """Nothing: what it does is in the weights."""

    def record(self) -> Mapping[str, Any]:
        """The steps, what is tuned, and the loss on what was held out before and after."""
        return {STAGE.record_key: self._record} if self._record else {}
