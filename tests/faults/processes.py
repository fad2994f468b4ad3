"""Command lines in processes of their own that can be killed, starved and watched, without seconds of imports each.

One process imports everything and forks for each command (`Forks`); the command then runs as it always does, in a
session of its own. What becomes of a study is compared with an undisturbed one by `essence`.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from quantdrift.base.records import file_digest
from support.beir_folder import numbered, write_beir_folder
from support.candidate_samples import WORDS, save_backbone, text

FULL = os.environ.get("QUANTDRIFT_FAULTS") == "full"
"""Whether all that there is is tried (`make faults`), or a few of each."""

_HEAVY = (
    *(f"quantdrift.{name}" for name in ("cli.study", "cli.run", "base.console", "study.cells", "study.results")),
    *(f"transformers.models.{name}" for name in ("bert.modeling_bert", "auto.tokenization_auto")),
    *("sentence_transformers", "pyarrow.parquet", "scipy.stats", "filelock", "safetensors.torch"),
    *("sklearn.linear_model", "rich.progress"),
)
"""What a command takes seconds to import."""

# --- a process that forks ---------------------------------------------------------------------------


@dataclass(kw_only=True)
class Process:
    """A command that runs.

    Attributes:
        pid: also of its process group.
        out: what it printed, a file.
        err: what it printed as errors, a file.
    """

    forks: "Forks"
    pid: int
    out: Path
    err: Path
    code: int | None = None

    def send(self, sign: signal.Signals) -> None:
        """Send a signal to all of its group; nothing happens where it has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, sign)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        if self.code is None:
            self.code = self.forks.ask(wait=self.pid)
        return self.code is None

    def wait(self) -> int:
        """The exit code; a signal is negative. It is killed after ten minutes."""
        end = time.monotonic() + 600
        while self.running:
            if time.monotonic() > end:
                self.send(signal.SIGKILL)
            time.sleep(0.005)
        assert self.code is not None
        return self.code

    @property
    def printed(self) -> str:
        """All that it printed."""
        return self.out.read_text() + self.err.read_text()


class Forks:
    """Starts `quantdrift` command lines, inside a `with` block."""

    def __init__(self, place: Path, **environment: str) -> None:
        self.place, self._number = place, 0
        tests = str(Path(__file__).parents[1])  # pytest finds them without; a process of its own does not
        start = f"import sys; sys.path.append({tests!r}); from faults.processes import serve; serve()"
        line = [sys.executable, "-c", start]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160", **environment}
        self._server = subprocess.Popen(line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **what: Any) -> Any:
        """The answer of the process that forks."""
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(json.dumps(what) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        assert answer, "the process that forks has ended"
        return json.loads(answer)

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
        places = {"cwd": str(cwd), "out": str(out), "err": str(err), "count": count and str(count)}
        how = {"kill_at": kill_at, "sign": int(sign), "before": before}
        how["env"] = {"QUANTDRIFT_CACHE": str(cwd / "cache"), **environment}
        pid = self.ask(start={"words": list(map(str, words)), **places, **how})
        return Process(forks=self, pid=pid, out=out, err=err)

    def run(self, *words: object, cwd: Path, **how: Any) -> tuple[int, str]:
        """Exit code of a command line, and all that it printed."""
        process = self.start(*words, cwd=cwd, **how)
        return process.wait(), process.printed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin
        self._server.stdin.close()
        self._server.wait()


def serve() -> None:
    """Fork for every line of standard input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _import_everything()
    for line in sys.stdin:
        asked = json.loads(line)
        if (how := asked.get("start")) is not None:
            if not (pid := os.fork()):
                answers.close()
                _become(how)  # returns by an exit
            answer: Any = pid
        else:
            ended, status = os.waitpid(asked["wait"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _import_everything() -> None:
    import torch  # noqa: PLC0415 -- in the process that forks alone

    torch.set_num_threads(1)
    for name in _HEAVY:
        importlib.import_module(name)


def _become(how: Mapping[str, Any]) -> None:
    """Be the command, in this process, which was forked for it."""
    from quantdrift.__main__ import script  # noqa: PLC0415 -- in the forked process alone

    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, name in ((1, how["out"]), (2, how["err"])):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(how["env"])
    os.chdir(how["cwd"])
    if how["before"]:
        module, _, function = how["before"].partition(":")
        getattr(importlib.import_module(module), function)()
    _watch_changes(how["kill_at"], how["sign"], how["count"])
    sys.argv = ["quantdrift", *how["words"]]
    script()


def _watch_changes(kill_at: int | None, sign: int, count: str | None) -> None:
    """Count what changes files and folders, of the study and of the cache; at a number, send a signal."""
    if kill_at is None and count is None:
        return
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
