"""A request to measure, as one value with one fingerprint, and the check whether a finished run answers it.

`run`, `gate`, the cells of a study, the pilot of a plan, `repair`, `waterfall` and the pytest plugin all
build one, so a run is measured again for the same reasons everywhere: another pair, other files of a model or of the
spec, other data, other settings, or other versions of the libraries.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from quantdrift.base.errors import QuantDriftError, RunError, UnsupportedError
from quantdrift.base.extras import version_of
from quantdrift.base.records import bytes_digest, file_digest, read_bytes, write_text
from quantdrift.base.registry import Registry
from quantdrift.data.labelled import Dataset
from quantdrift.data.streamed import STREAMED, StreamedDataset
from quantdrift.finished.shortlist import Shortlist
from quantdrift.kinds.encoder import KINDS, brought_for
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.kinds.stage import STAGES
from quantdrift.metrics import FAMILIES
from quantdrift.models.files.checkpoint import find_checkpoint
from quantdrift.models.files.model_files import MODEL_FILES
from quantdrift.models.files.named import resolve
from quantdrift.runs.folder import Run, read_run
from quantdrift.spec.grammar import Spec, Versus, is_endpoint, stages_of

State = Literal["done", "failed", "running", "open", "outdated", "damaged"]
"""The state of a run at a place."""

LIBRARIES = (
    *("quantdrift", "torch", "transformers", "sentence-transformers", "tokenizers", "safetensors", "numpy", "scipy"),
    *("scikit-learn", "accelerate", "pillow", "mteb", "beir", "lm_eval", "faiss-gpu"),
    *KINDS.packages,
    *QUANTIZERS.packages,
    *("bitsandbytes", "compressed-tensors", "torchao", "gguf", "optimum", "onnxruntime-gpu"),
    *STAGES.packages,
)
"""Packages that load models, quantize or compute; another version of one may give other numbers."""


@cache
def libraries(pair: Spec | Versus) -> dict[str, str]:
    """Return the versions of installed libraries, and of those that only this pair needs."""
    scheme = pair.scheme if isinstance(pair, Spec) else None
    own = () if scheme is None else chain.from_iterable(STAGES[name].needs(scheme) for name in stages_of(scheme))
    versions = {name: version_of(name) for name in (*LIBRARIES, *MODEL_FILES.packages, *own)}
    return {name: version for name, version in versions.items() if version is not None} | parts_of(pair)


@cache
def parts_of(pair: Spec | Versus) -> dict[str, str]:
    """Return the versions of other packages whose parts a pair uses, as the registries know them.

    Every run stores all metrics, so packages with metrics always count.
    """
    registries: tuple[Registry[Any], ...] = (MODEL_FILES, STREAMED, FAMILIES)
    versions = dict(chain.from_iterable(each.versions(*each.values()).items() for each in registries))
    for name in names_of(pair):
        with suppress(QuantDriftError):  # it is in memory, on a server, or a file that no kind takes
            versions |= brought_for(resolve(name))
    if isinstance(pair, Spec):
        versions |= QUANTIZERS.versions(QUANTIZERS[pair.scheme.quantizer])
        for stage in (STAGES[name] for name in stages_of(pair.scheme)):
            versions |= {**STAGES.versions(stage), **stage.versions(pair.scheme)}
    return versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Everything that decides a run.

    Attributes:
        pair: two models, or one model and its scheme.
        data: name, split and fingerprint of the data, and whatever else identifies them.
        settings: settings of the measurement as JSON values, with device and revision.
        part: part or use of the data: a shortlist, held-out inputs, a pilot.
        models: digests of the models' files, better ones than those of names, sizes and times.
        dataset: the data themselves, once they are read.
        shortlist: the shortlist that is reranked.
    """

    pair: Spec | Versus
    data: Sequence[Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    part: Sequence[Any] = ()
    models: Sequence[str | None] | None = None
    dataset: Dataset | StreamedDataset | None = field(default=None, compare=False, repr=False)
    shortlist: Shortlist | None = field(default=None, compare=False, repr=False)

    @property
    def certain(self) -> bool:
        """Whether a change of the models would be seen; on a hub or a server they may change unseen."""
        if isinstance(self.pair, Spec) and not all(STAGES[name].reproducible for name in stages_of(self.pair.scheme)):
            return False
        return all(_place(name)[0] for name in names_of(self.pair)) if self.models is None else None not in self.models

    @property
    def fingerprint(self) -> str:
        """One digest of everything that decides the run.

        Raises:
            QuantDriftError: a model cannot be found.
            OSError: a file that the spec names cannot be read.
        """
        parts = {
            "pair": str(self.pair),
            "models": list(map(stamp_of, names_of(self.pair)) if self.models is None else self.models),
            "files": {} if isinstance(self.pair, Versus) else files_of(self.pair),
            "data": list(self.data),
            "settings": dict(self.settings),
            "part": list(self.part),
            "libraries": libraries(self.pair),
        }
        return bytes_digest(json.dumps(parts, sort_keys=True).encode())


def names_of(pair: Spec | Versus) -> tuple[str, ...]:
    """Return the names of a pair's models."""
    return (pair.reference, pair.candidate) if isinstance(pair, Versus) else (pair.model,)


def files_of(spec: Spec) -> dict[str, str]:
    """Return the digests of the files that a spec names: calibration texts, stored widths."""
    named = {key: Path(value).expanduser() for key, value in spec.scheme.options}
    return {key: file_digest(file) for key, file in named.items() if file.is_file()}


def stamp_of(model: str) -> str:
    """Return a digest of the names, sizes and times of a model's files, which are not read.

    A model on the hub or on a server has a digest of its name alone.

    Raises:
        QuantDriftError: there is no such model.
    """
    place, canonical, timed = _place(model)
    if place is None:
        if not is_endpoint(model):
            resolve(model)
        return canonical
    # rglob follows no links to folders, which could lead anywhere; the second pattern follows those at the top
    walked = {*place.rglob("*"), *place.glob("*/*")} if place.is_dir() else {place}
    files = sorted(file for file in walked if file.is_file())
    sizes = [(str(file.relative_to(place)), file.stat().st_size) for file in files]
    times = [file.stat().st_mtime_ns for file in files] if timed else []
    return bytes_digest(repr((canonical, sizes, times)).encode())


def _place(model: str) -> tuple[Path | None, str, bool]:
    """Return the place of a model's files on this machine, if any; its name; and whether the files may change."""
    if is_endpoint(model):
        return None, model, True
    try:
        source = resolve(model)
    except QuantDriftError:  # transformers cannot load it by itself: a graph, a folder of a GGUF file
        place = Path(model).expanduser()
        with suppress(QuantDriftError):  # the checkpoint is more than this file
            place = find_checkpoint(model).folder if place.is_file() else place
        return (place if place.exists() else None), model, True
    at = Path(source.location)
    return (None if source.kind == "hub" or not at.exists() else at), source.canonical, source.kind == "local"


def finished(place: Path, fingerprint: str | None) -> tuple[State, Run | None]:
    """Return the state of the run at a place, and the run if it is whole and has the fingerprint."""
    if not place.exists():
        return "open", None
    try:
        run = read_run(place)
        if any(file_digest(place / name) != digest for name, digest in run.record["files"].items()):
            return "damaged", None
    except (RunError, OSError):
        return "damaged", None
    is_same = fingerprint is not None and run.record.get("cell") == fingerprint
    return ("done", run) if is_same else ("outdated", None)


ATTEMPTS = 2
"""Attempts that end without an error after which there is no further one."""


@contextmanager
def attempted(note: Path, fingerprint: str | None) -> Iterator[None]:
    """Note an attempt that may end the process: a library aborts, or the system kills it for its memory.

    The note is written before the attempt and removed after it, with or without an error. So a note that is left
    behind is of an attempt that ended the process.

    Raises:
        UnsupportedError: ATTEMPTS have ended the process.
        DiskError: the note cannot be written.
    """
    before = 0
    with suppress(OSError, ValueError):
        noted = re.fullmatch(f"running: attempt ([0-9]) of {fingerprint}", read_bytes(note, limit=200).decode())
        before = int(noted[1]) if noted else 0
    if before >= ATTEMPTS:
        raise UnsupportedError(
            f"{ATTEMPTS} attempts ended the process without an error: a library aborted, or memory ran out and the "
            "system killed it. Leave it out, or make it smaller"
        )
    write_text(note, f"running: attempt {before + 1} of {fingerprint}", what="the attempt")
    try:
        yield
    finally:
        with suppress(OSError):
            note.unlink()
