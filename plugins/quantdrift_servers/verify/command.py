"""`quantdrift verify`: simulated = exported = served?"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from quantdrift.parts import OnCorpus, OnModel, Output, argument, find_model, option, prints, read_candidate
from quantdrift_servers.texts import MORE, TEXTS, accepted, draw, without

if TYPE_CHECKING:
    from quantdrift_servers.verify.likeness import Likeness

_N = 64


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(OnCorpus, OnModel):
    """The options of `quantdrift verify`."""

    deployed: str = argument("CHECKPOINT: A folder, an ONNX or GGUF file, or a server: openai:URL#MODEL")
    of: str = option("--of SPEC: What was simulated, MODEL@SCHEME: minilm@W4-rtn, ./my-model@W4-gptq", default=...)


@prints("json")
def command(options: VerifyOptions) -> Output:
    """Simulated = exported = served? Holds a folder or a server against the candidate that a SPEC simulates.

    Both embed 64 texts, built in or of the data; methods that calibrate need the data that they had then. The verdict
    is equal (to the last bit), within rounding (of the number type, or of what either changes in other batches), or
    other. Of a folder that torch runs it also names the layer whose weights begin to differ. The exit code is 0 (equal,
    within rounding), 1 (other) or 2 (it could not be told).

    For example: quantdrift verify ./minilm-w4 --of minilm@W4

    More: docs/guides/checkpoints.md
    """
    named = options.data is not None or options.task is not None
    spec = read_candidate(options.of, has_data=named)
    found = find_model(options.deployed)  # refused before anything is calibrated
    dataset = options.dataset if named else None
    texts = [*TEXTS, *MORE][:_N] if dataset is None else draw(dataset, _N)
    from quantdrift.parts import make_candidate
    from quantdrift_servers.verify.likeness import held_against

    left_out: list[str] = []
    with options.stoppable("nothing was written"), redirect_stdout(sys.stderr):  # kernels talk
        pair = make_candidate(spec, dataset=dataset, **options.how)
        deployed = found.load(like=pair.encoder, device=str(pair.device))
        if found.on_server:
            texts, left_out = without(texts, accepted(deployed, texts, options.batch_size)[1])
        likeness = held_against(pair, deployed, texts, options.batch_size)
    return Output(
        data={"deployed": options.deployed, "of": str(spec), "notes": list(deployed.notes), **asdict(likeness)},
        title=f"{likeness.verdict}: {options.deployed}, held against {spec}",
        about=[*deployed.notes, *left_out],
        lines=list(_words(likeness, options.deployed, spec.model)),
        code=int(likeness.verdict == "other"),
    )


def _words(found: Likeness, name: str, model: str) -> Iterator[str]:
    batches = found.bound <= sum(found.noise)
    allowed = "what both change in other batches" if batches else f"rounding in {found.dtype}"
    yield (
        f"embeddings of {found.n} texts differ by {found.difference:.1e} of their length at most; {allowed} comes to "
        f"{found.bound:.1e}"
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
            f"weights of {len(found.others):,} of {len(found.parts):,} modules are others, first those of "
            f"{first.name}: by {first.difference:.1e} of the largest in a row; rounding comes to {first.bound:.1e}"
        )
    else:
        yield f"weights of {len(found.parts) - len(unseen):,} modules are the same, but for rounding"
    if unseen and len(unseen) < len(found.parts):
        yield f"not seen: {', '.join(unseen[:4])}{' ...' if len(unseen) > 4 else ''}"  # noqa: PLR2004 -- that many are shown
