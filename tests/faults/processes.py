"""Command lines in processes of their own that can be killed, starved and watched, without seconds of imports each.

One process imports everything and forks for each command (`Forks`); the command then runs as it always does. What
becomes of a study is compared with an undisturbed one by `essence`.
"""

import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from quantdrift.base.records import file_digest
from support.beir_folder import numbered, write_beir_folder
from support.candidate_samples import WORDS, save_backbone, text
from support.warm import Started, warm

FULL = os.environ.get("QUANTDRIFT_FAULTS") == "full"
"""Whether all that there is is tried (`make faults`), or a few of each."""

_HEAVY = tuple(
    f"quantdrift.{name}" for name in ("cli.study", "cli.run", "base.console", "study.cells", "study.results")
)
"""What of quantdrift a command imports."""

# --- commands --------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Process:
    """A command that runs.

    Attributes:
        out: what it printed, a file.
        err: what it printed as errors, a file.
    """

    started: Started
    out: Path
    err: Path

    def send(self, sign: signal.Signals) -> None:
        """Send a signal to all of its group; nothing happens where it has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.started.pid, sign)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.started.code(0) is None

    def wait(self) -> int:
        """The exit code; a signal is negative. It is killed after ten minutes."""
        if (code := self.started.code(600)) is None:
            self.send(signal.SIGKILL)
            code = self.started.code(600)
        assert code is not None
        return code

    @property
    def printed(self) -> str:
        """All that it printed."""
        return self.out.read_text() + self.err.read_text()


class Forks:
    """Starts `quantdrift` command lines, inside a `with` block."""

    def __init__(self, place: Path, **environment: str) -> None:
        self.place, self._number = place, 0
        hub = {name: value for name, value in environment.items() if name.startswith("HF_")}
        self._warm = warm(**hub).with_modules(_HEAVY, **{"COLUMNS": "160", **environment})

    def start(
        self,
        *words: object,
        cwd: Path,
        kill_at: int | None = None,
        count: Path | None = None,
        sign: signal.Signals = signal.SIGKILL,
        before: str = "",
        **environment: str,
    ) -> Process:
        """Start `quantdrift WORDS`.

        Args:
            words: of the command line.
            cwd: where.
            kill_at: the process sends itself the signal before the change of a file or folder of this number.
            count: a file to write the number of these changes to.
            sign: SIGKILL, or another.
            before: MODULE:FUNCTION that is called first.
            environment: what it is given beside that of this process; its cache is CWD/cache otherwise.
        """
        self._number += 1
        out, err = self.place / f"{self._number}.out", self.place / f"{self._number}.err"
        first: list[tuple[str, dict[str, Any]]] = [(before, {})] if before else []
        if kill_at is not None or count is not None:
            how = {"kill_at": kill_at, "sign": int(sign), "count": count and str(count)}
            first.append(("faults.processes:watch_changes", how))
        environment = {"QUANTDRIFT_CACHE": str(cwd / "cache"), **environment}
        with open(os.devnull) as nothing, out.open("w") as printed, err.open("w") as errors:
            fds = [file.fileno() for file in (nothing, printed, errors)]
            line = ("-m", "quantdrift", *words)
            started = self._warm.start(*line, cwd=cwd, fds=fds, first=first, **environment)
        return Process(started=started, out=out, err=err)

    def run(self, *words: object, cwd: Path, **how: Any) -> tuple[int, str]:
        """Exit code of a command line, and all that it printed."""
        process = self.start(*words, cwd=cwd, **how)
        return process.wait(), process.printed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._warm.close()


def watch_changes(*, kill_at: int | None, sign: int, count: str | None) -> None:
    """Count what changes files and folders, of the study and of the cache; at a number, send a signal."""
    handle = os.open(count, os.O_WRONLY | os.O_CREAT, 0o666) if count is not None else -1
    n = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal n
        opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if opened or event in {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree"}:
            n += 1
            if n == kill_at:
                os.killpg(0, sign)
            if handle >= 0:
                os.pwrite(handle, str(n).encode(), 0)

    sys.addaudithook(watch)


def no_room_for_batches() -> None:
    """Let the tiny model fail on batches of FAULT_BATCH or more, as FAULT_KIND does."""
    import torch  # noqa: PLC0415 -- in the forked process alone
    from transformers import BertModel  # noqa: PLC0415

    least, kind, forward = int(os.environ["FAULT_BATCH"]), os.environ["FAULT_KIND"], BertModel.forward
    errors = {
        "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        "mkl": MemoryError("std::bad_alloc"),
    }

    def limited(self: Any, input_ids: Any, *arguments: Any, **more: Any) -> Any:
        if len(input_ids) >= least:
            raise errors[kind]
        return forward(self, input_ids, *arguments, **more)

    BertModel.forward = limited


# --- a study, and what became of it -----------------------------------------------------------------


def write_inputs(root: Path) -> None:
    """A tiny model, two corpora a and b, and labelled texts."""
    save_backbone(root / "tiny")
    for name, start in (("a", 2000), ("b", 5000)):
        queries = [text(start + number, 5) for number in range(24)]
        documents = [text(start + 1000 + number, 3 + number % 9) for number in range(40)]
        write_beir_folder(root / name, numbered("q", queries), numbered("c", documents))
    (root / "labelled").mkdir()
    for split, start in (("train", 0), ("test", 500)):
        rows = [
            {"text": f"{WORDS[number % 3]} {text(start + number, 4)}", "label": "xyz"[number % 3]}
            for number in range(30)
        ]
        (root / "labelled" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def write_study(place: Path, root: Path, **changes: Any) -> None:
    """A study.yaml of every kind of cell: rounded, calibrated, with chosen widths, of classes, and one that fails."""
    place.mkdir(parents=True, exist_ok=True)
    study = {
        "models": [{"model": str(root / "tiny"), "name": "tiny"}],
        "schemes": ["W8", "W3", "W4A8+calib=16", "W3.5+gap+widths=2,4,8"],
        "data": [
            *(str(root / name) for name in ("a", "b", "labelled")),
            {"folder": str(root / "none"), "name": "gone"},
        ],
        "exclude": [{"data": name, "scheme": part} for name in ("b", "labelled", "gone") for part in ("W3*", "W4*")],
        "settings": {"k": 20, "batch_size": 8},
    }
    (place / "study.yaml").write_text(json.dumps({**study, **changes}))


RUN = ("study", "run", "study.yaml", "--quiet", "--out", "out")
RETRY = ("study", "retry", *RUN[2:])
_MOMENTARY = {"times", "seconds", "seconds_in_method", "layers_kept_from_before", "digest"}


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(part) for key, part in value.items() if key not in _MOMENTARY}
    return [_lasting(part) for part in value] if isinstance(value, list) else value


def essence(study: Path) -> dict[str, Any]:
    """Every cell's record but for times, and the digests of its files, taken anew."""
    cells = {}
    for folder in sorted((study / "cells").glob("[!.]*")):
        record = json.loads((folder / "run.json").read_text())
        files = {file.name: file_digest(file) for file in folder.iterdir() if file.name != "run.json"}
        assert files == record["files"]
        cells[folder.name] = _lasting(record)
    return cells


def stamps(study: Path) -> dict[str, int]:
    """When every finished cell was written."""
    times = {}
    for path in study.glob("cells/[!.]*/run.json"):
        with suppress(FileNotFoundError):
            times[path.parent.name] = path.stat().st_mtime_ns
    return times


def files_in(*folders: Path) -> list[str]:
    """All files and folders, by names that are the same from run to run."""
    return sorted(str(path.relative_to(folder.parent)) for folder in folders for path in folder.rglob("*"))
