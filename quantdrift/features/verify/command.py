"""`quantdrift verify`: simulated = exported = served?"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.text import counted, some
from quantdrift.cli.options import DATA, SPEC, OnCorpus, OnModel, argument, of_texts, option, prints
from quantdrift.data.sentences import PLAIN
from quantdrift.features.canary.record import TEXTS, by_role, draw
from quantdrift.kinds.stage import STAGES
from quantdrift.show.output import Output
from quantdrift.spec.grammar import is_endpoint, parse, read_endpoint

if TYPE_CHECKING:
    from quantdrift.candidate.pair import Model, QuantizedPair
    from quantdrift.features.verify.likeness import Likeness
    from quantdrift.models.files.checkpoint import Checkpoint

_N = 64


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(OnCorpus, OnModel):
    """The options of `quantdrift verify`."""

    deployed: str = argument("CHECKPOINT: A folder, an ONNX or GGUF file, or a server: openai:URL#MODEL")
    of: str = option(f"--of {SPEC.replace('What to compare', 'What was simulated')}", default=...)
    data: Path | None = option(f"{DATA} Texts come from it; methods that calibrate need what they had then.")


@prints("json")
def command(options: VerifyOptions) -> Output:
    """Simulated = exported = served? Holds a folder or a server against the candidate that a SPEC simulates.

    Both embed 64 texts. The verdict is equal (to the last bit), within rounding (of the number type, or of what either
    changes in other batches), or other. Of a folder that torch runs it also names the layer whose weights begin to
    differ. The exit code is 0 (equal, within rounding), 1 (other) or 2 (it could not be told).

    For example: quantdrift verify ./minilm-w4 --of minilm@W4

    More: docs/guides/checkpoints.md
    """
    from quantdrift.candidate.refusals import check_spec, refuse_uncalibrated
    from quantdrift.models.files.checkpoint import find_checkpoint

    spec = parse(options.of)
    if spec.scheme.query_only or any(stage.kind == "vectors" and stage.in_(spec.scheme) for stage in STAGES.values()):
        raise UnsupportedError(f"{spec}: verify holds models against each other; leave what is stored and +query out")
    check_spec(spec)
    # refused before anything is calibrated
    checkpoint = None if is_endpoint(options.deployed) else find_checkpoint(options.deployed)
    named = options.data is not None or options.task is not None
    refuse_uncalibrated(spec, has_data=named)
    dataset, texts = None, [*TEXTS, *(("document", " ".join(two)) for two in permutations(PLAIN, 2))][:_N]
    if named:
        dataset = of_texts(options.dataset, "verify")
        texts = draw(dataset.queries, dataset.documents, _N)
    asked = by_role(texts)
    from quantdrift.asking.saving import make_candidate
    from quantdrift.features.diagnose.diagnosis import taken
    from quantdrift.features.verify.likeness import held_against

    with options.stoppable("nothing was written"), redirect_stdout(sys.stderr):  # kernels talk
        pair = make_candidate(spec, dataset=dataset, **options.how)
        deployed = _loaded(options.deployed, checkpoint, pair)
        if is_endpoint(options.deployed):
            asked = taken(deployed, asked)
        found = held_against(pair, deployed, asked, options.batch_size)
    other, again = found.verdict == "other", shlex.quote(f"{spec.model} vs {options.deployed}")
    return Output(
        data={"deployed": options.deployed, "of": str(spec), "notes": list(deployed.notes), **asdict(found)},
        title=f"{found.verdict}: {options.deployed}, held against {spec}",
        about=deployed.notes,
        lines=list(_words(found, options.deployed, spec.model)),
        next=[f"why: quantdrift diagnose {again} --data FOLDER"] if other and not found.others else [],
        code=int(other),
    )


def _loaded(name: str, checkpoint: Checkpoint | None, pair: QuantizedPair) -> Model:
    """The model of a name, beside its simulation: of a checkpoint, or on a server."""
    from quantdrift.candidate.checkpoint import load_checkpoint
    from quantdrift.models.server import Servers, open_endpoint

    if checkpoint is not None:
        return load_checkpoint(checkpoint, pair.encoder, device=pair.device)
    endpoint = read_endpoint(name)
    server = open_endpoint(endpoint, Servers(), root=None)
    server.learn({role: pair.encoder.prompt(role) for role in ("query", "document")}, {})
    return server


def _words(found: Likeness, name: str, model: str) -> Iterator[str]:
    batches = found.bound <= sum(found.noise)
    allowed = "what both change in other batches" if batches else f"rounding in {found.dtype}"
    yield (
        f"embeddings of {counted(found.n, 'text')} differ by {found.difference:.1e} of their length at most; {allowed} "
        f"comes to {found.bound:.1e}"
    )
    yield f"in other batches the simulation differs from itself by {found.noise[0]:.1e}, {name} by {found.noise[1]:.1e}"
    if found.verdict == "other" and found.to_reference <= found.bound:
        yield f"{name} gives what {model} gives at full precision"
    unseen = [part.name for part in found.parts if part.difference is None]
    if len(unseen) == len(found.parts):
        yield "its weights cannot be seen"
    elif found.others:
        first = found.others[0]
        yield (
            f"weights of {len(found.others):,} of {counted(len(found.parts), 'module')} are others, first those of "
            f"{first.name}: by {first.difference:.1e} of the largest in a row; rounding comes to {first.bound:.1e}"
        )
    else:
        yield f"weights of {counted(len(found.parts) - len(unseen), 'module')} are the same, but for rounding"
    if unseen and len(unseen) < len(found.parts):
        yield f"not seen: {some(unseen)}"
