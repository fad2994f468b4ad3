"""Rules: what a line means, what it is refused for; and the settings in pyproject.toml."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import quantdrift.gate.rules as module
from quantdrift.errors import DataError
from quantdrift.gate.rules import GateConfig, RuleError, find_config, parse_rule, parse_slice, read_config


def test_the_examples_of_the_module() -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("flip@1 <= 0.25", ("flip@1", "<=", 0.25, None)),
        ("ndcg@10 >= .3", ("ndcg@10", ">=", 0.3, None)),
        ("flip@1 no worse", ("flip@1", "no worse", None, None)),
        ("  flip@1   no  worse   by 3 %  ", ("flip@1", "no worse", 0.03, None)),
        ("flip@1 [german] <= 0.3", ("flip@1", "<=", 0.3, "german")),
        ("flip@1[ two words ]no worse", ("flip@1", "no worse", None, "two words")),
        ("change.ndcg@10 >= -2 %", ("change.ndcg@10", ">=", -0.02, None)),
        ("flip@1:gap=0.05.. <= 0.01", ("flip@1:gap=0.05..", "<=", 0.01, None)),
    ],
)
def test_what_a_line_means(text: str, wanted: tuple[str, str, float | None, str | None]) -> None:
    rule = parse_rule(text)
    held = (str(rule.metric), rule.test, rule.number, rule.on)
    assert held == wanted
    assert parse_rule(str(rule)) == rule


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected a rule such as"),
        ("flip@1", "expected a rule such as"),
        ("flip@1 < 0.25", "expected a rule such as"),
        ("flip@1 no worse 0.03", "expected a rule such as"),
        ("flip@1 [] <= 0.3", "expected a rule such as"),
        ("flip@1 <= quarter", "expected a number in the rule 'flip@1 <= quarter', got 'quarter'"),
        ("flip@1 <= nan", "expected a number"),
        ("contenders <= 1e400", "a limit is a finite number"),
        ("flip@1 <= 25", "flip@1 lies from 0 to 1, all on one side of it; 25 % is 0.25"),
        ("separation no worse by 0.1", "a median or quantile, which has no paired test"),
        ("noise_floor no worse", "of the reference, which the baseline shares; give a limit"),
        ("flip_to_runner_up no worse", "neither way is better"),
        ("coverage@0.1 no worse by 0.1", "each run calibrates its own threshold"),
        ("relative.ndcg@10 no worse by 0.02", "ask for change.ndcg@10"),
        ("flip@1:separation=0..1 no worse", "a slice by separation holds other inputs in every"),
        ("gold_gained@10 no worse by 0.1", "inputs that the candidate's answers choose"),
        ("flip_to_irrelevant no worse", "ask for harm, or give a limit"),
        ("flip@1 no worse by 0", "a margin lies above 0 and below the greatest difference"),
        ("flip@1 no worse by 3", "(1); for 2 percentage points give 0.02"),
    ],
)
def test_what_a_line_is_refused_for(text: str, why: str) -> None:
    with pytest.raises(RuleError, match=re.escape(why)):
        parse_rule(text)


def write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pyproject.toml"
    path.write_text(text, encoding="utf-8")
    return path


def gate(folder: Path, text: str) -> Path:
    return write(folder, f"[tool.quantdrift.gate]\n{text}\n")


def test_every_key(tmp_path: Path) -> None:
    path = gate(
        tmp_path,
        """
        target = "minilm@W4-rtn"
        data = "data/faq"
        task = "PythonDocsRetrieval"
        baseline = "ci/drift-baseline.json"
        rules = ["flip@1 no worse by 3 %", "flip@1 [german] <= 0.3"]
        alpha = 0.01
        accept-underpowered = true
        slices = {german = "de-*", others = ["en-*", "fr-*"]}
        """,
    )
    assert read_config(path) == GateConfig(
        target="minilm@W4-rtn",
        data=tmp_path / "data/faq",
        task="PythonDocsRetrieval",
        baseline=tmp_path / "ci/drift-baseline.json",
        rules=(parse_rule("flip@1 no worse by 0.03"), parse_rule("flip@1 [german] <= 0.3")),
        slices={"german": ("de-*",), "others": ("en-*", "fr-*")},
        alpha=0.01,
        accept_underpowered=True,
        path=path,
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rules = 5", "rules is a list of rules, such as ['flip@1 no worse by 0.03']; got 5"),
        ('rules = ["flip@1"]', "rules: expected a rule such as"),
        ('rules = ["flop@1 <= 0.3"]', "rules: unknown metric 'flop@1'; did you mean flip@1"),
        ("target = 5", "target is a spec or a run folder, such as 'minilm@W4-rtn'; got 5"),
        ('alpha = "0.05"', "alpha is a probability, such as 0.05; got '0.05'"),
        ('accept-underpowered = "yes"', "accept-underpowered is true or false; got 'yes'"),
        ("slices = {german = 5}", "slices is a table of patterns on input ids"),
        ('rule = ["flip@1 <= 0.3"]', "there is no setting 'rule'; did you mean rules?"),
        ("colour = 1", "there is no setting 'colour'; known: target, data, task, baseline, rules"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, told: str) -> None:
    path = gate(tmp_path, text)
    with pytest.raises(DataError) as stopped:
        read_config(path)
    assert told in str(stopped.value)
    assert str(stopped.value).startswith(f"{path}, [tool.quantdrift.gate]")


def test_the_nearest_file_above_is_taken(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b" / "c"
    below.mkdir(parents=True)
    top = gate(tmp_path, "alpha = 0.01")
    assert find_config(below) == top
    assert find_config(tmp_path) == top
    middle = gate(tmp_path / "a", "alpha = 0.02")
    assert find_config(below) == middle


@pytest.mark.parametrize(
    "content", [b"[tool.quantdrift.gate", b"\xff\xfe", b"[tool.quantdrift.gate]\nalpha = 0.01\nalpha = 1\n"]
)
def test_a_broken_file_is_an_error_and_not_no_file(tmp_path: Path, content: bytes) -> None:
    """Rules that are not seen must not be taken for none."""
    (tmp_path / "pyproject.toml").write_bytes(content)
    path = find_config(tmp_path)
    assert path is not None
    with pytest.raises(DataError, match="cannot be read as TOML"):
        read_config(path)


def test_paths_are_seen_from_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gate(tmp_path, 'target = "runs/one"\ndata = "/data/faq"\nbaseline = "../b.json"')
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = read_config(path)
    assert found.target == str(tmp_path / "runs" / "one")
    assert found.data == Path("/data/faq")
    assert found.baseline == tmp_path / ".." / "b.json"


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("models/mine@W4-rtn", "../models/mine@W4-rtn"),
        ("models/mine vs models/other", "../models/mine vs ../models/other"),
        ("org/name@W4-rtn", "org/name@W4-rtn"),
        ("models/none@W4-rtn", "models/none@W4-rtn"),
    ],
)
def test_a_model_in_a_folder_is_seen_from_there_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, wanted: str
) -> None:
    """As a relative path: the spec is written into the baseline."""
    path = gate(tmp_path, f'target = "{target}"')
    for name in ("models/mine", "models/other", "minilm", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert read_config(path).target == wanted


def test_a_slice_on_the_command_line() -> None:
    assert parse_slice("german=de-*") == ("german", ("de-*",))
    assert parse_slice(" two = en-*, fr-* ,") == ("two", ("en-*", "fr-*"))
    assert parse_slice("odd=a=b") == ("odd", ("a=b",))
    for wrong in ("german", "=de-*", "german=", "german= , ", ""):
        with pytest.raises(DataError, match=r"expected a slice as NAME=PATTERN"):
            parse_slice(wrong)
