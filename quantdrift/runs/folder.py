"""A run folder: `evidence.parquet` and `run.json`, both there or neither, and a probe if one read.

A run is written into a folder beside its final place and moved there in one step when it is complete. What was
interrupted never looks finished. run.json has a checksum and holds the digests of the other files: what was changed, or
comes from another run, is refused when it is read.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field, create_model, model_validator

from quantdrift.base.errors import RunError
from quantdrift.base.paths import RUNS
from quantdrift.base.records import (
    Amount,
    Bits,
    Real,
    Record,
    Share,
    Whole,
    check_writable,
    file_digest,
    whole_folder,
    with_checksum,
    write_text,
)
from quantdrift.evidence.file import read_evidence, write_evidence
from quantdrift.evidence.probe import LinearProbe
from quantdrift.evidence.record import Evidence
from quantdrift.metrics import parse_metric
from quantdrift.metrics.forbids import DRAWN
from quantdrift.runs.changes import Changed, changed_inputs, frame_of
from quantdrift.runs.identity import Identity, signature
from quantdrift.runs.verdict import Verdict, verdict
from quantdrift.statistics.estimates import Estimate

if TYPE_CHECKING:
    import pandas as pd

    from quantdrift.statistics.standing import Tolerances

RECORD = "run.json"
EVIDENCE = "evidence.parquet"
PROBE = "probe.npz"


_NAMED: dict[str, Any] = {
    "name fingerprint candidate_fingerprint corpus_fingerprint digest split subset kind inputs harness path": str,
    "columns similarity reading dtype device finished": str,
    "n_queries n_documents n_inputs n_classes n_train inputs_left_out n of": Whole,
    "nominal_bits": Bits,
    "share changed mean": Share,
    "value low high": Real,
}
"""Names of values in run.json that commands read, and the kind of each, wherever it stands."""
_FIELDS: dict[str, Any] = {name: (kind | None, None) for names, kind in _NAMED.items() for name in names.split()}
_Values: Any = create_model("_Values", **_FIELDS)


class _Part(_Values):  # type: ignore[misc]  # mypy sees no class in what create_model returns
    """A part of run.json; null stands for what is not known, and more may stand there."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
    warnings: list[str] = Field(default=[])
    forbids: dict[str, str] | None = None
    layers_never_reached: list[str] | None = None
    widths: dict[str, Whole | None] | None = None
    corpus_size: _Part | None = None
    limit: _Part | None = None
    drawn: _Part | None = None
    shortlist: _Part | None = None
    probe: _Part | None = None
    allocation: _Part | None = None
    reference: _Part | None = None
    candidate: _Part | None = None


class _Data(_Part):
    name: str


class _Floor(_Part):
    sampled: Whole
    within_reach: Whole
    largest: Amount


class RunRecord(Record, extra="allow"):
    """run.json."""

    FORMAT, VERSION = "quantdrift-run", 2
    WHAT, MAKE = "the record of a run", "quantdrift run SPEC --data FOLDER"

    spec: str
    files: dict[str, str]
    data: _Data
    model: _Part = _Part()
    settings: _Part = _Part()
    quantization: _Part | None = None
    bits_per_weight: dict[str, Amount | None] | None = None
    metrics: dict[str, _Part] = Field(default_factory=dict)
    times: _Part | None = None
    noise_floor: _Floor | None = None
    tolerances: _Part | None = None
    diff: _Part | None = None

    @model_validator(mode="after")
    def _has_evidence(self) -> RunRecord:
        if EVIDENCE not in self.files:
            raise ValueError(f"files.{EVIDENCE} is missing")
        return self


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Run:
    """A finished run.

    `run["gold_lost@3"]` is the estimate of a metric.

    Attributes:
        path: its folder.
        record: the content of run.json.
        keeper: what keeps a temporary folder, as long as it lives.
    """

    path: Path
    record: Mapping[str, Any]
    keeper: object = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"<Run of {self.record['spec']} on {self.record['data']['name']}, in {self.path}>"

    def __getitem__(self, metric: str) -> Estimate:
        """The estimate of a metric: value, 95 % interval, number of inputs."""
        return parse_metric(metric)(self.evidence())

    @property
    def verdict(self) -> Verdict:
        """The verdict on the run: `word` ("safe to deploy", "right answers lost", "open", ...), `sentence`, and what to
        do `next`, with the `command` that does it.
        """
        return verdict(self.record)

    def changed(self, k: int = 1) -> list[Changed]:
        """The inputs whose top-1 changed: relevant ones lost first, then the largest gaps.

        Args:
            k: how many of the first ranks are looked at, as a set.

        Raises:
            RunError: fewer ranks are stored.
        """
        return changed_inputs(self.evidence(), k)

    def to_pandas(self, metrics: Iterable[str] = ()) -> pd.DataFrame:
        """One row per input, as a data frame of pandas.

        The index is the input's id. `flip` says whether the top-1 changed; `gap`, `candidate_gap`, `epsilon`
        and `S` are in score units, `separation` = gap / (2 epsilon); `reference` and `candidate` are the first
        answers, `reference_score` and `candidate_score` what each arm gave to its own, `reference_relevant` and
        `candidate_relevant` are missing where an input has no labels. Every metric gets a column of its name.

        Args:
            metrics: e.g. ["ndcg@10", "change.ndcg@10"].

        Raises:
            MissingExtraError: pandas is not installed.
            UnknownNameError: there is no such metric.
            MetricError: it has no value per input, or looks deeper than the stored ranks.
        """
        return frame_of(self.evidence(), metrics)

    def save(self, folder: str | Path) -> Run:
        """Write the run to a folder, replacing an earlier run at that place.

        Args:
            folder: may hold an earlier run, nothing else.

        Raises:
            RunError: the place holds something that is not a run, or it cannot be written.
        """
        place = Path(folder).expanduser().absolute()
        check_place(place)
        with whole_folder(place, what="the run") as inside:
            shutil.copytree(self.path, inside, dirs_exist_ok=True)
        return replace(self, path=place, keeper=None)

    def evidence(self, *, drawn: bool = False) -> Evidence:
        """The evidence, read from the folder.

        Args:
            drawn: also of a run that stopped when its own answers were enough (`quantdrift gate --sequential`), whose
                inputs can be looked at, and whose rates are biased.

        Raises:
            RunError: it is missing or damaged, or of another run.
        """
        if not drawn and (why := (self.record["data"].get("forbids") or {}).get(DRAWN)):
            raise RunError(f"{self.path}: {why}. Expected a run of all inputs; quantdrift show tells what changed here")
        return read_evidence(self.path / EVIDENCE, digest=self.record["files"][EVIDENCE])

    def probe(self) -> LinearProbe | None:
        """The linear probe that read the classes, read from the folder; None if none did.

        Raises:
            RunError: it is missing or damaged, or of another run.
        """
        digest = self.record["files"].get(PROBE)
        return None if digest is None else LinearProbe.load(self.path / PROBE, digest=digest)

    def exact_evidence(self, purpose: str) -> Evidence:
        """The evidence, if it knows both arms' scores of all items.

        Args:
            purpose: what that is needed for, for the message.

        Raises:
            RunError: it is missing or damaged, or was made of lists that were cut short or of answers without scores.
        """
        evidence = self.evidence()
        if not evidence.exact:
            raise RunError(
                f"{purpose} needs the scores of all items in both arms; {self.path} was made of lists that were cut "
                "short, or of answers without scores"
            )
        return evidence


def now() -> str:
    """The time, ISO 8601 in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def write_run(path: Path, *, evidence: Evidence, record: Mapping[str, Any], probe: LinearProbe | None = None) -> Run:
    """Write a run folder, replacing an earlier run at that place.

    Args:
        path: folder to write; may hold an earlier run, nothing else.
        evidence: per-input record.
        record: everything else, as JSON values; `format`, `format_version`, `signature`, `files` and `digest` are
            added.
        probe: what read the classes, where a probe did; a deployment needs it.

    Returns:
        The run as it now lies on disk.

    Raises:
        RunError: the place holds something that is not a run, or it cannot be written (no space, no permission).
            Nothing is left behind.
    """
    path = path.absolute()
    check_place(path)
    with whole_folder(path, what="the run") as folder:
        write_evidence(evidence, folder / EVIDENCE)
        if probe is not None:
            probe.save(folder / PROBE)
        files = {part.name: file_digest(part) for part in sorted(folder.iterdir())}
        full = with_checksum({**RunRecord.head(), **record, "signature": signature(record), "files": files})
        RunRecord.checked(full, path / RECORD)
        text = json.dumps(full, indent=2, ensure_ascii=False) + "\n"
        (folder / RECORD).write_text(text, encoding="utf-8")
    return Run(path=path, record=full)


def judged_with(run: Run, tolerances: Tolerances) -> Run:
    """The run as it is judged with these tolerances, which its record then says."""
    said = asdict(tolerances)
    if said == run.record.get("tolerances"):
        return run
    record = with_checksum({**run.record, "tolerances": said})
    write_text(run.path / RECORD, json.dumps(record, indent=2, ensure_ascii=False) + "\n", what="the run")
    return replace(run, record=record)


def check_place(path: Path) -> None:
    """Refuse a place that holds something other than a run, before hours go into one.

    Raises:
        RunError: it is a file, or a folder with other content, or cannot be written to.
    """
    check_writable(path, what="the run")
    if others := _others(path):
        raise RunError(
            f"{path} holds something that is not a run: {', '.join(others[:4])}; expected a new "
            "folder or an earlier run to replace. Choose another with --out."
        )


def _others(path: Path) -> list[str]:
    """List what does not belong to a run, at a place for one."""
    try:
        entries = sorted(entry.name for entry in path.iterdir())
    except FileNotFoundError:
        return []
    except OSError:  # a file; or a link that leads to itself
        return [path.name]
    # of a run whose record is damaged the evidence is there
    if RECORD in entries and (RunRecord.peek(path / RECORD) or EVIDENCE in entries):
        return [name for name in entries if name not in {RECORD, EVIDENCE, PROBE}]
    return entries


def read_run(path: str | Path) -> Run:
    """The run that lies in a folder.

    Args:
        path: the folder, or the run.json in it.

    Raises:
        RunError: it is not a run folder, or one that this version cannot read.
    """
    path = Path(path)
    folder = path.parent if path.name == RECORD else path
    record_path = folder / RECORD
    if not record_path.is_file():
        if below := _below(folder):
            raise RunError(f"expected a run; {folder} holds {len(below):,}, and the newest is {max(below, key=_age)}")
        what = "has no run.json" if folder.is_dir() else "is a file" if folder.exists() else "does not exist"
        raise RunError(
            f"expected a run folder (with {RECORD} and {EVIDENCE}); {folder} {what}. Runs are written by: "
            f"{RunRecord.MAKE}"
        )
    record = RunRecord.read_content(record_path)
    RunRecord.checked(record, record_path)
    return Run(path=folder, record=record)


def last_run() -> Path:
    """The folder of the run below quantdrift-runs that was written last.

    Raises:
        RunError: there is none.
    """
    if not (folders := _below(RUNS)):
        raise RunError(
            f"last is the latest run below {RUNS}, and there is none here. Runs are written by: {RunRecord.MAKE}"
        )
    return max(folders, key=_age)


def _age(folder: Path) -> int:
    return (folder / RECORD).stat().st_mtime_ns


def _below(path: Path) -> list[Path]:
    """The run folders at or below a path, in the order of names."""
    # what goes while it is walked, or may not be read, holds no run; a name too long is no folder
    below = sorted(Path(at, RECORD).relative_to(path) for at, _, names in os.walk(path) if RECORD in names)
    # not what is being written, nor what other tools write of that name; what is damaged has its evidence
    ours = [path / file for file in below if not any(part.startswith(".") for part in file.parts)]
    return [file.parent for file in ours if RunRecord.peek(file) or file.with_name(EVIDENCE).is_file()]


def find_runs(paths: Iterable[Path]) -> list[Run]:
    """All runs at or below some folders, each once, in the order of the paths and then of names.

    Args:
        paths: run folders, or folders that hold some at any depth.

    Raises:
        RunError: below one of the paths there is no run, or one cannot be read.
    """
    runs: dict[Path, Run] = {}
    for path in paths:
        for folder in _below(path) or [path]:  # without any, reading it says what was expected
            run = read_run(folder)
            runs.setdefault(run.path.resolve(), run)
    return list(runs.values())


def refuse_copies(runs: Iterable[Run]) -> None:
    """Refuse two folders that hold one run: it would count twice, and be seen when held out.

    Two runs are one if spec, model, data and settings are the same.

    Raises:
        RunError: names both folders.
    """
    seen: dict[str, Path] = {}
    for run in runs:
        # corpus sizes of one run share all else
        n_documents = run.record["data"].get("n_documents")
        identity = json.dumps([asdict(Identity.of(run.record)), n_documents], sort_keys=True)
        if identity in seen:
            raise RunError(f"the same run lies in two folders and would count twice: {seen[identity]} and {run.path}")
        seen[identity] = run.path
