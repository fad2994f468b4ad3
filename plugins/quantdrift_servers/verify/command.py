"""`quantdrift verify`: compare a folder or server with the simulated candidate."""

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
    of: str = option("--of SPEC: The simulated candidate, MODEL@SCHEME: minilm@W4-rtn, ./my-model@W4-gptq", default=...)


@prints("json")
def command(options: VerifyOptions) -> Output:
    """Compare a folder or a server with the candidate that a SPEC simulates.

    Both embed 64 texts, which are built in or of the data; a method that calibrates needs the same data again. The
    verdict is equal (to the last bit), within rounding (of the number type, or of what either changes in other
    batches), or other. In a folder that torch runs, the first layer whose weights differ is named too. The exit code is
    0 (equal, within rounding), 1 (other) or 2 (they cannot be compared).

    For example: quantdrift verify ./minilm-w4 --of minilm@W4

    More: docs/guides/checkpoints.md
    """
    named = options.data is not None or options.task is not None
    spec = read_candidate(options.of, has_data=named)
    model = find_model(options.deployed)  # refused before anything is calibrated
    dataset = options.dataset if named else None
    texts = [*TEXTS, *MORE][:_N] if dataset is None else draw(dataset, _N)
    from quantdrift.parts import make_candidate
    from quantdrift_servers.verify.likeness import held_against

    left_out: list[str] = []
    with options.stoppable("nothing was written"), redirect_stdout(sys.stderr):  # kernels print
        pair = make_candidate(spec, dataset=dataset, **options.how)
        deployed = model.load(like=pair.encoder, device=str(pair.device))
        if model.on_server:
            texts, left_out = without(texts, accepted(deployed, texts, options.batch_size)[1])
        likeness = held_against(pair, deployed, texts, options.batch_size)
    return Output(
        data={"deployed": options.deployed, "of": str(spec), "notes": list(deployed.notes), **asdict(likeness)},
        title=f"{likeness.verdict}: {options.deployed}, compared with {spec}",
        about=[*deployed.notes, *left_out],
        lines=list(_words(likeness, options.deployed, spec.model)),
        code=int(likeness.verdict == "other"),
    )


def _words(likeness: Likeness, name: str, model: str) -> Iterator[str]:
    batches = likeness.bound <= sum(likeness.noise)
    cause = "other batches" if batches else f"rounding in {likeness.dtype}"
    yield (
        f"embeddings of {likeness.n} texts differ by at most {likeness.difference:.1e} of their length; {cause} can "
        f"cause {likeness.bound:.1e}"
    )
    simulation, other = likeness.noise
    yield f"in other batches the simulation differs from itself by {simulation:.1e}, {name} by {other:.1e}"
    if likeness.verdict == "other" and likeness.to_reference <= likeness.bound:
        yield f"{name} gives the embeddings of {model} at full precision"
    unseen = [part.name for part in likeness.parts if part.difference is None]
    if len(unseen) == len(likeness.parts):
        yield "its weights cannot be seen"
    elif likeness.others:
        first = likeness.others[0]
        yield (
            f"weights of {len(likeness.others):,} of {len(likeness.parts):,} modules differ, the first those of "
            f"{first.name}: by {first.difference:.1e} of the largest in a row; rounding can cause {first.bound:.1e}"
        )
    else:
        yield f"weights of {len(likeness.parts) - len(unseen):,} modules are the same, but for rounding"
    if unseen and len(unseen) < len(likeness.parts):
        yield f"not seen: {', '.join(unseen[:4])}{' ...' if len(unseen) > 4 else ''}"  # noqa: PLR2004 -- shown
