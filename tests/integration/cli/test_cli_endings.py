"""How commands end where the output cannot be written, or nobody saw coming what went wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quantdrift import __version__
from quantdrift.cli import tell_crash
from support.gate_command_line import Cli, cli, good, run_of

__all__ = ["cli", "good"]  # fixtures

COMMANDS = [
    ("metrics", "RUN"),
    ("metrics", "RUN", "--per-input", "-m", "flip@1"),
    ("metrics", "RUN", "--json"),
    ("list", "metrics"),
    ("--help",),
]


def ended(run: Path, *arguments: str, stdout: int, **environ: str) -> subprocess.CompletedProcess[bytes]:
    words = [str(run) if word == "RUN" else word for word in arguments]
    return subprocess.run(
        [sys.executable, "-m", "quantdrift", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        check=False,
        env={**os.environ, **environ},
        timeout=120,
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device")
def test_a_full_disk_is_one_line(good: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        for arguments in COMMANDS:
            done = ended(good, *arguments, stdout=full.fileno())
            assert done.returncode == 2
            lines = done.stderr.decode().splitlines()
            assert lines == ["quantdrift: the output could not be written: No space left on device"]


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_reader_that_has_gone_hears_nothing(good: Path, arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = ended(good, *arguments, stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.slow
def test_an_encoding_without_such_signs_is_no_error(good: Path) -> None:
    for environ in ({"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
        for arguments in COMMANDS[:5]:
            done = ended(good, *arguments, stdout=subprocess.PIPE, **environ)
            assert (done.returncode, done.stderr) == (0, b"")
            assert done.stdout.isascii()


def test_what_nobody_saw_coming_is_one_line(cli: Cli, good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError("some \x1b[31m\n::error::thing")

    monkeypatch.setattr("quantdrift.features.metrics.command.measure", crash)
    with pytest.raises(ZeroDivisionError):  # the tests see it: see conftest.py
        cli("metrics", good)
    monkeypatch.setattr("quantdrift.cli.tell_crash", tell_crash)  # as users have it
    code, out, err = cli("metrics", good)
    assert (code, out) == (2, "")
    assert err == (
        "quantdrift: unexpected ZeroDivisionError: some �[31m ::error::thing (QUANTDRIFT_DEBUG=1 shows where)\n"
    )
    monkeypatch.setenv("QUANTDRIFT_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        cli("metrics", good)


@pytest.mark.parametrize(
    "line",
    [
        "diff RUN OTHER --out LOOP",
        "certify RUN --alpha 0.3 --save LOOP",
        "gate RUN -r flip@1<=1 --report LOOP.xml",
        "gate RUN -r flip@1<=1 --baseline LOOP --update",
        "metrics LOOP",
        "gate RUN --config LOOP",
        "certify RUN --check LOOP",
        "diff RUN OTHER --qrels LOOP",
    ],
)
def test_a_link_that_leads_to_itself(cli: Cli, good: Path, tmp_path: Path, line: str) -> None:
    for name in ("LOOP", "LOOP.xml"):
        (tmp_path / name).symlink_to(name)
    places = {"RUN": str(good), "OTHER": str(run_of(tmp_path / "other", range(20)))}
    code, _, err = cli(*(places.get(word, word) for word in line.split()))
    assert code in {0, 2}  # a link can be replaced
    assert code == 0 or len(err.splitlines()) == 1
    assert "unexpected" not in err


def test_what_is_registered_for_the_exit_is_done_and_nothing_is_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import atexit, os, sys; from quantdrift.__main__ import script\n"
        "class Kept:\n"
        "    def __del__(self): sys.stdout.write('taken apart')\n"
        "kept = Kept()\n"
        "atexit.register(lambda: print(os.environ['OMP_WAIT_POLICY']))\n"
        "script()"
    )

    def ended(words: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, "-c", program, words], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert ended("--version") == (0, f"quantdrift {__version__}\nPASSIVE\n")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert ended("runn") == (2, "ACTIVE\n")


@pytest.mark.slow
def test_commands_on_finished_runs_load_no_torch(good: Path) -> None:
    program = (
        "import sys; from quantdrift.cli import main\n"
        "for line in sys.argv[1:]:\n"
        "    sys.argv = ['quantdrift', *line.split()]\n"
        "    try: main()\n"
        "    except SystemExit as stopped: assert stopped.code in (None, 0, 2), line\n"
        "sys.exit(bool({'torch', 'transformers', 'mteb'} & {*sys.modules}))"
    )
    run = str(good)
    words = ["metrics", "certify", "route", "show", "law", "contenders"]
    lines = [*(f"{word} {run}" for word in words), f"compare {run} {run}", "list metrics", "doctor"]
    lines.append(f"diff {run} {run} --arms reference,candidate")
    done = subprocess.run([sys.executable, "-c", program, *lines], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
