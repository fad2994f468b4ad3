"""Every command, on runs and data whose ids, names and paths attack who looks."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quantdrift.base.errors import DataError
from quantdrift.base.patching import errors_in_one_line
from quantdrift.harness import carefully
from quantdrift_pytest.session import tersely
from support.comparison_samples import ITEMS, N, evidence_of, flipped, run_of, scores
from support.gate_command_line import Cli, cli
from support.hostile_text import HOSTILE, check_clean, check_json
from support.tiny_command_line import one_thread, place

__all__ = ["cli", "one_thread", "place"]  # fixtures


def written(path: Path, flips: range, scheme: str, data: str = "corpus", *, model: str = HOSTILE) -> Path:
    """A run in which some inputs have another first item; every name is hostile."""
    candidate = flipped(scores(), flips) + np.random.default_rng(len(data)).normal(0, 0.001, (N, ITEMS))
    evidence = evidence_of(scores(), candidate, names=[f"{HOSTILE}{row}" for row in range(N)])
    items = np.array([f"{item}{HOSTILE}" for item in range(ITEMS)], dtype=object)
    sizes = {"n_queries": N, "n_documents": ITEMS, "warnings": [HOSTILE]}
    return run_of(
        path,
        replace(evidence, item_ids=items),
        spec=f"{model}@{scheme}",
        model={"name": HOSTILE, "fingerprint": f"m{HOSTILE}", "candidate_fingerprint": scheme},
        data={"name": f"{data}{HOSTILE}", "split": HOSTILE, "fingerprint": data, **sizes},
        times={"finished": HOSTILE},
        bits_per_weight=None,
        metrics={},
    ).path


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Three schemes on each of two corpora, in folders with such names."""
    root = tmp_path / HOSTILE.replace("/", "")
    return [
        written(root / f"{data}{scheme}{HOSTILE.replace('/', '')}", range(flips), scheme, data)
        for data in ("corpus", "other")
        for scheme, flips in (("W3-g128-rtn", 20), ("W4-g128-rtn", 8), ("W8-g128-rtn", 2))
    ]


@pytest.fixture(autouse=True)
def _no_line_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "9999")


def every_format(cli: Cli, *arguments: object, code: int = 0, title: bool = False) -> None:
    """Run it three times; a title is wrapped to the width of its table."""
    for more in ((), ("--markdown",), ("--json",)):
        ended, out, err = cli(*arguments, *more)
        assert ended == code, err
        assert out
        check_clean(err)
        if more == ("--json",):
            check_json(out)
        else:
            check_clean(out, wrapped=title and not more)
        rows = [line for line in out.splitlines() if line.startswith("|")]
        if more == ("--markdown",) and rows and not rows[-1].startswith("- "):
            assert all(line.endswith("|") for line in rows)


def test_metrics(cli: Cli, runs: list[Path]) -> None:
    every_format(cli, "metrics", runs[0], title=True)
    every_format(cli, "metrics", *runs)
    every_format(cli, "metrics", *runs, "--by", "separation")
    _, out, _ = cli("metrics", *runs)
    assert "[red]x[/red] :heart:" in out  # is shown, and colours nothing
    code, out, _ = cli("metrics", runs[0], "--per-input", "-m", "flip@1")
    assert code == 0
    check_clean(out, tabs=True)
    assert ({line.count("\t") for line in out.splitlines()}, len(out.splitlines())) == ({1}, N + 1)
    check_json(cli("metrics", runs[0], "--per-input", "--json")[1])


def test_two_runs(cli: Cli, runs: list[Path], tmp_path: Path) -> None:
    a, b = (  # a spec that does not parse cannot be compared
        written(tmp_path / f"{n}{HOSTILE.replace('/', '')}", range(n), f"W{n}-rtn", model="minilm") for n in (3, 8)
    )
    every_format(cli, "compare", a, b)
    every_format(cli, "law", a, b, written(tmp_path / "c", range(20), "W2-rtn", model="minilm"))
    check_clean("".join(map(str, cli("contenders", a, b, "--json"))))  # it names no folder
    every_format(cli, "diff", runs[0], runs[1], "--changed", 5)
    every_format(cli, "diff", runs[0], runs[0], "--arms", "reference,candidate")


def test_certify_and_route(cli: Cli, runs: list[Path], tmp_path: Path) -> None:
    every_format(cli, "certify", *runs, "--splits", 3, title=True)
    check = tmp_path / f"check{HOSTILE.replace('/', '')}.json"
    code, out, err = cli("certify", runs[0], "--alpha", "0.4", "--save", check)
    assert code == 0, err
    check_clean(out + err, wrapped=True)
    every_format(cli, "certify", runs[0], "--check", check, title=True)
    every_format(cli, "route", *runs, title=True)
    code, out, err = cli("route", runs[0], "--save", tmp_path / "router.json")
    assert code == 0, err
    check_clean(out + err, wrapped=True)


def test_gate(cli: Cli, runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (written(tmp_path / name, range(n), "W4") for name, n in (("a", 5), ("b", 30)))
    code, _, err = cli("gate", a, "--update")
    assert code == 0, err
    check_clean(err)
    reports = [tmp_path / f"gate.{suffix}" for suffix in ("md", "xml", "json")]
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    every_format(cli, "gate", b, *(arg for path in reports for arg in ("--report", path)), code=1)
    for path in (*reports, tmp_path / "summary"):
        check_clean(path.read_text(encoding="utf-8"))


def test_errors(cli: Cli, runs: list[Path], tmp_path: Path) -> None:
    missing = f"{HOSTILE.replace('/', '')}\udcff"
    for arguments in (
        ("metrics", missing),
        ("metrics", runs[0], "-m", HOSTILE),
        ("metrics", runs[0], f"--{HOSTILE}"),
        ("compare", runs[0], runs[4]),
        ("diff", runs[0], missing),
        ("gate", missing),
        ("gate", runs[0], "-r", HOSTILE),
        ("list", HOSTILE),
        (HOSTILE,),
        ("law", *runs, "--by", HOSTILE),
    ):
        code, out, err = cli(*arguments)
        assert code == 2, arguments
        assert err
        check_clean(out + err, tabs=True, wrapped=True)  # an error may have several lines


def test_what_lists_the_environment(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / HOSTILE.replace("/", "")))
    monkeypatch.setattr("quantdrift.features.doctor.checks.UNASKED", HOSTILE)  # is not installed, and not imported
    for arguments in (("cache",), ("doctor",), ("doctor", "--json"), ("list", "tasks")):
        _, out, err = cli(*arguments)
        check_clean(out + err)


def test_on_a_terminal_the_styles_are_ours(cli: Cli, runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    styled = cli("metrics", *runs)[1] + cli("gate", runs[0], "-r", "flip@1 <= 1")[1]
    assert "\x1b[1m" in styled
    check_clean(re.sub(r"\x1b\[\d+(;\d+)*m", "", styled))


def raising() -> None:
    raise DataError(HOSTILE)


def test_what_plugins_say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)  # is put back
    errors_in_one_line()
    sys.excepthook(DataError, DataError(HOSTILE), None)
    with carefully(HOSTILE):
        raising()
    out, err = capsys.readouterr()
    assert not out
    assert err.count("�[31m") == 3
    check_clean(err, tabs=True, wrapped=True)
    with pytest.raises(DataError) as raised:
        tersely(raising)()
    check_clean(str(raised.value), tabs=True, wrapped=True)
