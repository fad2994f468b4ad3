"""A run folder: `evidence.parquet` and `run.json`, both there or neither, and a probe if one read.

A run is written into a folder beside its final place and moved there in one step when it is
complete. What was interrupted never looks finished.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantdrift.errors import RunError
from quantdrift.evidence import Evidence
from quantdrift.evidence_file import read_evidence, write_evidence
from quantdrift.probe import LinearProbe
from quantdrift.records import check_writable, whole_folder

__all__ = ["Run", "classifies", "find_runs", "read_run", "refuse_copies", "write_run"]

FORMAT = "quantdrift-run"
FORMAT_VERSION = 1
RECORD = "run.json"
EVIDENCE = "evidence.parquet"
PROBE = "probe.npz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished run.

    Attributes:
        path: its folder.
        record: the content of run.json.
    """

    path: Path
    record: Mapping[str, Any]

    def evidence(self) -> Evidence:
        """The evidence, read from the folder.

        Raises:
            RunError: it is missing or damaged.
        """
        return read_evidence(self.path / EVIDENCE)

    def exact_evidence(self, purpose: str) -> Evidence:
        """The evidence, if it knows both arms' scores of all items.

        Args:
            purpose: what that is needed for, for the message.

        Raises:
            RunError: it is missing or damaged, or was made of lists that were cut short or of
                answers without scores.
        """
        evidence = self.evidence()
        if not evidence.exact:
            raise RunError(
                f"{purpose} needs the scores of all items in both arms; {self.path} was made of "
                "lists that were cut short, or of answers without scores, so that epsilon and the "
                "separation ratio are bounds at best"
            )
        return evidence


def classifies(record: Mapping[str, Any]) -> bool:
    """Whether a run.json is of inputs that were put into classes, not of searches."""
    return bool((record.get("data") or {}).get("kind") == "classification")


def write_run(
    path: Path,
    *,
    evidence: Evidence,
    record: Mapping[str, Any],
    probe: LinearProbe | None = None,
) -> Run:
    """Write a run folder, replacing an earlier run at that place.

    Args:
        path: folder to write; may hold an earlier run, nothing else.
        evidence: per-input record.
        record: everything else, as JSON values; `format` and `format_version` are added.
        probe: what read the classes, where a probe did; a deployment needs it.

    Returns:
        The run as it now lies on disk.

    Raises:
        RunError: the place holds something that is not a run, or it cannot be written (no space, no
            permission). Nothing is left behind.
    """
    path = path.absolute()
    check_place(path)
    full = {"format": FORMAT, "format_version": FORMAT_VERSION, **record}
    with whole_folder(path, what="the run") as folder:
        write_evidence(evidence, folder / EVIDENCE)
        if probe is not None:
            probe.save(folder / PROBE)
        text = json.dumps(full, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        (folder / RECORD).write_text(text, encoding="utf-8")
    return Run(path=path, record=full)


def check_place(path: Path) -> None:
    """Refuse a place that holds something other than a run, before hours go into one.

    Raises:
        RunError: it is a file, or a folder with other content, or cannot be written to.
    """
    check_writable(path, what="the run")
    if not path.exists():
        return
    others = sorted({entry.name for entry in path.iterdir()}) if path.is_dir() else [path.name]
    if RECORD in others and _is_ours(path / RECORD):
        others = [name for name in others if name not in {RECORD, EVIDENCE, PROBE}]
    if others:
        raise RunError(
            f"{path} holds something that is not a run: {', '.join(others[:4])}; expected a new "
            "folder or an earlier run to replace. Choose another with --out."
        )


def read_run(path: Path) -> Run:
    """The run that lies in a folder.

    Args:
        path: the folder, or the run.json in it.

    Raises:
        RunError: it is not a run folder, or one that this version cannot read.
    """
    path = Path(path)  # a string will do
    folder = path.parent if path.name == RECORD else path
    record_path = folder / RECORD
    if not record_path.is_file():
        what = (
            "has no run.json"
            if folder.is_dir()
            else "is a file"
            if folder.exists()
            else "does not exist"
        )
        raise RunError(
            f"expected a run folder (with {RECORD} and {EVIDENCE}); {folder} {what}. "
            "Runs are written by: quantdrift run SPEC --data FOLDER"
        )
    try:
        record = json.loads(record_path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{record_path} is damaged: {error}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise RunError(f"{record_path} is not the record of a quantdrift run")
    if record.get("format_version") != FORMAT_VERSION:
        raise RunError(
            f"{record_path} is of format version {record.get('format_version')}; this quantdrift "
            f"reads version {FORMAT_VERSION}"
        )
    return Run(path=folder, record=record)


def find_runs(paths: Iterable[Path]) -> list[Run]:
    """All runs at or below some folders, each once, in the order of the paths and then of names.

    Args:
        paths: run folders, or folders that hold some at any depth.

    Raises:
        RunError: below one of the paths there is no run, or one cannot be read.
    """
    found: dict[Path, Run] = {}
    for path in paths:
        records = [path] if path.is_file() else sorted(path.rglob(RECORD))
        # other tools write files of that name too; a folder asked for by name must be a run
        folders = [
            record.parent
            for record in records
            if record.parent == path or (_is_ours(record) and not _is_partial(record, path))
        ]
        if not folders:
            read_run(path)  # says what was expected
        for folder in folders:
            found.setdefault(folder.resolve(), read_run(folder))
    return list(found.values())


def refuse_copies(runs: Iterable[Run]) -> None:
    """Refuse two folders that hold one run: it would count twice, and be seen when held out.

    Two runs are one if spec, model, data and settings are the same.

    Raises:
        RunError: names both folders.
    """
    seen: dict[str, Path] = {}
    for run in runs:
        record = run.record
        model, data = record.get("model", {}), record.get("data", {})
        parts = {
            "spec": record.get("spec"),
            # a server can change what a name stands for
            "models": [model.get(key) for key in ("fingerprint", "candidate_fingerprint")],
            "data": [data.get(key) for key in ("name", "fingerprint", "split", "n_documents")],
            "settings": record.get("settings"),
        }
        identity = json.dumps(parts, sort_keys=True)
        if identity in seen:
            raise RunError(
                f"the same run lies in two folders and would count twice: {seen[identity]} and "
                f"{run.path} (spec, model, data and settings are equal); give only one of them"
            )
        seen[identity] = run.path


def _is_partial(record: Path, below: Path) -> bool:
    """Whether it lies in a hidden folder, as runs do while they are written."""
    return record != below and any(p.startswith(".") for p in record.relative_to(below).parts)


def _is_ours(record: Path) -> bool:
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT
