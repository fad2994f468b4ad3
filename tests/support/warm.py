"""Python processes without seconds of imports: one process imports the libraries, and forks for each command.

Nothing of quantdrift is imported in it, so a command finds the packages and the environment that it is given. A
command that is started here runs as `python` would run it, in a process and a session of its own.
"""

import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import site
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

LIBRARIES = (
    *("torch", "sentence_transformers", "datasets", "pandas", "pyarrow.parquet", "scipy.stats", "filelock"),
    *("sklearn.linear_model", "safetensors.torch", "rich.progress", "typer", "jinja2"),
    *("transformers.models.bert.modeling_bert", "transformers.models.auto.tokenization_auto"),
)
_SHIM = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    asked = {{"line": [*{first!r}, *sys.argv[1:]], "cwd": os.getcwd(), "env": dict(os.environ)}}
    socket.send_fds(server, [b"?"], [0, 1, 2])
    server.sendall(json.dumps(asked).encode() + b"\\n")
    with server.makefile() as answers:
        code = int([*answers][-1])
os.kill(os.getpid(), -code) if code < 0 else os._exit(code)
"""


class Started:
    """A command that runs.

    Attributes:
        pid: its process, which leads a group and a session.
    """

    def __init__(self, server: socket.socket) -> None:
        self._server, self._answers, self._code = server, server.makefile(), None
        self.pid = int(self._answers.readline())

    def code(self, seconds: float) -> int | None:
        """The exit code, a signal negative; None if it still runs after so many seconds."""
        if self._code is None and select.select([self._server], [], [], seconds)[0]:
            self._code = int(self._answers.readline())
            self._answers.close()
            self._server.close()
        return self._code


class Warm:
    """Starts commands. It ends with the process that made it, or with `close`."""

    def __init__(self, address: str, last: Any, **environment: str) -> None:
        self.address, self._last, self._environment = address, last, environment

    def start(self, *line: object, cwd: Path, fds: Sequence[int], first: object = (), **environment: str) -> Started:
        """Start `python LINE`.

        Args:
            line: what stands behind `python`: -m, -c or a file first.
            cwd: where.
            fds: its standard input, output and errors.
            first: functions to call before: MODULE:FUNCTION and its keyword arguments, as pairs.
            environment: what it is given beside that of this process.
        """
        asked = {"line": list(map(str, line)), "cwd": str(cwd), "env": self._with(environment), "first": first}
        return Started(_ask(self.address, asked, fds))

    def _with(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        return {**os.environ, "OMP_NUM_THREADS": "1", **self._environment, **environment}

    def run(self, *line: object, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run `python LINE` to its end."""
        with open(os.devnull) as nothing, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            started = self.start(*line, cwd=cwd, fds=[file.fileno() for file in (nothing, out, err)], **environment)
            code = started.code(1800)
            for file in (out, err):
                file.seek(0)
            assert code is not None, f"{line} has not ended"
            return subprocess.CompletedProcess(line, code, out.read().decode(), err.read().decode())

    def with_modules(self, modules: Sequence[str], **environment: str) -> "Warm":
        """Another, which has imported these modules too, with this environment."""
        address = str(Path(tempfile.mkdtemp(prefix="warm")) / "at")
        environment = {**self._environment, **environment}
        asked = {"address": address, "modules": modules, "env": self._with(environment)}
        server = _ask(self.address, asked, (0, 1, 2))
        assert server.makefile().readline(), "the process that forks has ended"
        return Warm(address, server, **environment)

    def shims(self, folder: Path, **first: Sequence[str]) -> None:
        """Write commands of these names into a folder, which run `python FIRST WORDS`."""
        folder.mkdir(exist_ok=True)
        for name, words in first.items():
            script = folder / name
            script.write_text(_SHIM.format(python=sys.executable, address=self.address, first=list(words)))
            script.chmod(0o755)

    def close(self) -> None:
        """End it."""
        self._last.close()


_WARM: dict[tuple[tuple[str, str], ...], Warm] = {}


def warm(**hub: str) -> Warm:
    """The process of these variables of the hub, which its library reads when it is imported; offline without any."""
    hub = hub or {"HF_HUB_OFFLINE": "1"}
    if (key := tuple(sorted(hub.items()))) not in _WARM:
        address = str(Path(tempfile.mkdtemp(prefix="warm")) / "at")
        start = (
            f"import sys; sys.path.append({str(Path(__file__).parents[1])!r}); from support.warm import main; main()"
        )
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "QUANTDRIFT_HOOK": "0", **hub}
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        server = subprocess.Popen([sys.executable, "-c", start, address], env=environment, **pipes)
        assert server.stdin
        assert server.stdout
        assert server.stdout.readline(), "the process that forks has ended"
        _WARM[key] = Warm(address, server.stdin, **hub)
    return _WARM[key]


def _ask(address: str, asked: Mapping[str, Any], fds: Sequence[int]) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    socket.send_fds(server, [b"?"], list(fds))
    server.sendall(json.dumps(asked).encode() + b"\n")
    return server


# --- in the process that forks -----------------------------------------------------------------------


def main() -> None:
    """Import the libraries and fork until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest
    answers = os.dup(1)
    os.dup2(2, 1)
    _serve(sys.argv[1], LIBRARIES, 0, answers)


def _serve(address: str, modules: Sequence[str], control: int, answers: int) -> None:
    """Import modules, and fork for everyone who connects until `control` ends."""
    for name in modules:
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen(64)
        os.write(answers, b"there\n")
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system buries them
        while control not in select.select([server, control], [], [])[0]:
            connection = server.accept()[0]
            if not os.fork():
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                server.close()
                _answer(connection)  # it ends the process
            connection.close()
    shutil.rmtree(Path(address).parent)
    os._exit(0)


def _answer(connection: socket.socket) -> None:
    """Do what is asked, in a process of its own."""
    _, fds, *_ = socket.recv_fds(connection, 1, 3)
    with connection.makefile() as lines:
        asked = json.loads(lines.readline())
    os.environ.clear()
    os.environ.update(asked["env"])
    for path in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if path and path not in sys.path:
            sys.path.insert(0, path)
    if "address" in asked:
        _serve(asked["address"], asked["modules"], connection.fileno(), connection.fileno())
    if not (pid := os.fork()):
        with suppress(PermissionError):  # it leads a group already, if its parent was faster
            os.setsid()
        connection.close()
        for number, given in enumerate(fds):
            os.dup2(given, number)
            os.close(given)
        os.chdir(asked["cwd"])
        _become(asked["line"], asked.get("first", ()))
    for given in fds:
        os.close(given)
    with suppress(OSError):  # it may have ended, or done so itself
        os.setpgid(pid, pid)
    with suppress(OSError):  # nobody may be there to hear
        connection.sendall(f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(line: Sequence[str], first: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Be `python LINE`; it returns or raises as that ends."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, size, closefd=False) for n, mode, size in _STREAMS)
    for folder in site.getsitepackages():  # where pip puts the start-up hook
        site.addpackage(folder, "quantdrift.pth", None)
    for name, arguments in first:
        module, _, function = name.partition(":")
        getattr(importlib.import_module(module), function)(**arguments)
    try:
        _run(line)
    except SystemExit:
        raise
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
    sys.exit(0)


_STREAMS = ((0, "r", -1), (1, "w", -1), (2, "w", 1))


def _run(line: Sequence[str]) -> None:
    kind, *words = line
    if kind == "-m":
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *words[1:]]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(words[0], "<string>", "exec"), vars(sys.modules["__main__"]))
    elif kind.startswith("-"):
        os.execv(sys.executable, [sys.executable, *line])
    else:
        sys.argv = list(line)
        sys.path[0] = str(Path(kind).parent)
        runpy.run_path(kind, run_name="__main__")
