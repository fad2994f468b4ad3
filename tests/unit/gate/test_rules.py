"""Rules: what a line means, what it is refused for; and the settings in pyproject.toml."""

import doctest
import re
from pathlib import Path

import pytest

import quantdrift.gate.rules as module
from quantdrift.base.errors import DataError
from quantdrift.gate.rules import RuleError, find_config, parse_rule, parse_slice, read_config


def test_the_examples_of_the_module() -> None:
    assert doctest.testmod(module) == (0, 3)


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
    assert (str(rule.metric), rule.test, rule.number, rule.on) == wanted
    assert parse_rule(str(rule)) == rule


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("flip@1", "expected a rule such as"),
        ("flip@1 < 0.25", "expected a rule such as"),
        ("flip@1 [] <= 0.3", "expected a rule such as"),
        ("flip@1 <= nan", "expected a rule such as"),
        ("contenders <= 1e400", "a limit is a finite number"),
        ("flip@1 <= 25", "from 0 to 1; 25 % is 0.25"),
        ("separation no worse by 0.1", "a median or quantile, which has no paired test"),
        ("noise_floor no worse", "of the reference, which the baseline shares; give a limit"),
        ("flip_to_runner_up no worse", "no better direction"),
        ("coverage@0.1 no worse by 0.1", "each run calibrates its own threshold"),
        ("relative.ndcg@10 no worse by 0.02", "ask for change.ndcg@10"),
        ("flip@1:separation=0..1 no worse", "a slice by separation holds other inputs in every"),
        ("gold_gained@10 no worse by 0.1", "candidate's answers select"),
        ("flip@1 no worse by 0", "a margin lies above 0"),
        ("flip@1 no worse by 3", "(1); 2 percentage points"),
    ],
)
def test_what_a_line_is_refused_for(text: str, why: str) -> None:
    with pytest.raises(RuleError, match=re.escape(why)):
        parse_rule(text)


def gate(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pyproject.toml"
    path.write_text(f"[tool.quantdrift.gate]\n{text}\n", encoding="utf-8")
    return path


def test_paths_are_seen_from_the_file_and_a_target_where_it_is_one(tmp_path: Path) -> None:
    text = 'target = "minilm@W4-rtn"\ndata = "data/faq"\ntask = "Docs"\nbaseline = "../b.json"\n'
    config = read_config(gate(tmp_path, f"{text}accept-underpowered = true"))
    assert (config.target, config.task, config.accept_underpowered) == ("minilm@W4-rtn", "Docs", True)
    assert (config.data, config.baseline) == (str(tmp_path / "data/faq"), str(tmp_path / "../b.json"))
    (tmp_path / "run").mkdir()
    assert read_config(gate(tmp_path, 'target = "run"')).target == str(tmp_path / "run")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules = 5", "rules: input should be a valid list; got 5"),
        ("alpha = 0.6", "alpha: input should be less than or equal to 0.5"),
        ("slices = {german = 5}", "slices.german"),
        ('rule = ["flip@1 <= 0.3"]', "rule: extra inputs are not permitted"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = gate(tmp_path, text)
    with pytest.raises(DataError, match=f"^{re.escape(str(path))}.*{re.escape(message)}"):
        read_config(path)


def test_the_nearest_file_above_is_taken(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b" / "c"
    below.mkdir(parents=True)
    top = gate(tmp_path, "alpha = 0.01")
    assert (find_config(below), find_config(tmp_path)) == (top, top)
    middle = gate(tmp_path / "a", "alpha = 0.02")
    assert find_config(below) == middle


@pytest.mark.parametrize(
    "content", [b"[tool.quantdrift.gate", b"\xff\xfe", b"[tool.quantdrift.gate]\nalpha = 0.01\nalpha = 1\n"]
)
def test_a_broken_file_is_an_error_and_not_no_file(tmp_path: Path, content: bytes) -> None:
    """Rules that are not seen must not be taken for none."""
    (tmp_path / "pyproject.toml").write_bytes(content)
    path = find_config(tmp_path)
    with pytest.raises(DataError, match="TOML"):
        read_config(path)


def test_a_slice_on_the_command_line() -> None:
    assert parse_slice(" two = en-*, fr-* ,") == ("two", ["en-*", "fr-*"])
    for wrong in ("german", "=de-*", "german= , "):
        with pytest.raises(DataError, match="NAME=PATTERN"):
            parse_slice(wrong)
