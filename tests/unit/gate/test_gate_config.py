"""[tool.quantdrift.gate] in pyproject.toml: what it may hold, and where it is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantdrift.errors import DataError
from quantdrift.gate.rules import GateConfig, find_config, parse_rule, parse_slice, read_config


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


def test_an_empty_table_says_nothing(tmp_path: Path) -> None:
    path = gate(tmp_path, "")
    assert read_config(path) == GateConfig(path=path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rules = 5", "rules is a list of rules, such as ['flip@1 no worse by 0.03']; got 5"),
        ("rules = true", "rules is a list of rules"),
        ('rules = "flip@1 <= 0.3"', "rules is a list of rules"),
        ("rules = [1]", "rules is a list of rules"),
        ('rules = ["flip@1"]', "rules: expected a rule such as"),
        ('rules = ["flop@1 <= 0.3"]', "rules: unknown metric 'flop@1'; did you mean flip@1"),
        ('rules = ["flip@1 <= 30"]', "rules: the rule 'flip@1 <= 30' cannot be judged"),
        ("target = 5", "target is a spec or a run folder, such as 'minilm@W4-rtn'; got 5"),
        ('target = ""', "target is a spec or a run folder"),
        ("data = ['a']", "data is a folder; got ['a']"),
        ("task = 1", "task is the name of a task; got 1"),
        ("baseline = false", "baseline is a file, such as 'drift-baseline.json'; got False"),
        ('alpha = "0.05"', "alpha is a probability, such as 0.05; got '0.05'"),
        ("alpha = true", "alpha is a probability"),
        ('accept-underpowered = "yes"', "accept-underpowered is true or false; got 'yes'"),
        ("accept-underpowered = 1", "accept-underpowered is true or false"),
        ('slices = ["de-*"]', "slices is a table of patterns on input ids"),
        ("slices = {german = 5}", "slices is a table of patterns on input ids"),
        ("slices = {german = [5]}", "slices is a table of patterns"),
        ('rule = ["flip@1 <= 0.3"]', "there is no setting 'rule'; did you mean rules?"),
        ("accept_underpowered = true", "did you mean accept-underpowered?"),
        ("colour = 1", "there is no setting 'colour'; known: target, data, task, baseline, rules"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, told: str) -> None:
    path = gate(tmp_path, text)
    with pytest.raises(DataError) as stopped:
        read_config(path)
    assert told in str(stopped.value)
    assert str(stopped.value).startswith(f"{path}, [tool.quantdrift.gate]")


@pytest.mark.parametrize("text", ["", "[tool.quantdrift]", '[tool]\nquantdrift = "x"', '[project]\nname = "x"'])
def test_a_file_without_the_table(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    assert find_config(tmp_path) is None
    with pytest.raises(DataError, match=r"has no table \[tool.quantdrift.gate\]; expected one"):
        read_config(path)


@pytest.mark.parametrize(
    "text", ['[tool.quantdrift]\ngate = "strict"', '[[tool.quantdrift.gate]]\nrules = ["flip@1 <= 0.1"]']
)
def test_something_else_in_its_place_is_not_taken_for_none(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    assert find_config(tmp_path) == path
    with pytest.raises(DataError, match="What it has there is"):
        read_config(path)


def test_the_nearest_file_above_is_taken(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b" / "c"
    below.mkdir(parents=True)
    top = gate(tmp_path, "alpha = 0.01")
    assert find_config(below) == top
    assert find_config(tmp_path) == top
    middle = gate(tmp_path / "a", "alpha = 0.02")
    assert find_config(below) == middle
    # a project of its own, without settings of the gate, does not take those of another
    write(tmp_path / "a" / "b", '[project]\nname = "x"')
    assert find_config(below) is None


def test_it_is_looked_for_from_a_relative_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gate(tmp_path, "alpha = 0.01")
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    assert find_config(Path()) == path
    assert find_config(Path("..")) is not None


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


def test_a_missing_file_that_was_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read as TOML"):
        read_config(tmp_path / "other.toml")


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
        ("./models/mine@W4-rtn", "../models/mine@W4-rtn"),
        ("models/mine vs models/other", "../models/mine vs ../models/other"),
        ("minilm vs models/other", "minilm vs ../models/other"),
        ("minilm@W4-rtn", "minilm@W4-rtn"),
        ("org/name@W4-rtn", "org/name@W4-rtn"),
        ("models/none@W4-rtn", "models/none@W4-rtn"),
        ("runs/none", "runs/none"),
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
    # in the folder of the file it is what was written
    monkeypatch.chdir(tmp_path)
    assert read_config(path).target == target


def test_a_slice_on_the_command_line() -> None:
    assert parse_slice("german=de-*") == ("german", ("de-*",))
    assert parse_slice(" two = en-*, fr-* ,") == ("two", ("en-*", "fr-*"))
    assert parse_slice("odd=a=b") == ("odd", ("a=b",))
    for wrong in ("german", "=de-*", "german=", "german= , ", ""):
        with pytest.raises(DataError, match=r"expected a slice as NAME=PATTERN"):
            parse_slice(wrong)
