"""The committed file: the same to the byte, reviewable, without texts, and checked when read."""

import difflib
import hashlib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.base.errors import RunError
from quantdrift.base.records import with_checksum
from quantdrift.gate.baseline import Baseline, Snapshot
from quantdrift.gate.judge import snapshot_for
from support.comparison_samples import evidence_of
from support.gate_samples import evidence, reference, rules, target

DEFAULT = rules("flip@1 no worse by 0.03")


@pytest.fixture
def whole() -> Snapshot:
    """60 inputs, of which 5 flip and 3 are noisy."""
    return snapshot_for(target(evidence(range(5), noise=range(4, 7))), DEFAULT)


@pytest.fixture
def path(tmp_path: Path, whole: Snapshot) -> Path:
    Baseline.of(whole).write(tmp_path / "baseline.json")
    return tmp_path / "baseline.json"


def test_what_a_line_holds(whole: Snapshot) -> None:
    lines = Baseline.of(whole).text().splitlines()
    (line,) = (line for line in lines if line.startswith('    "q4"'))
    name, _, outcome = line.strip().rstrip(",").partition(": ")
    # it flips, loses the first place and no other, and is noisy: 1 / log2(3) and 1 / 2
    assert (name, json.loads(outcome)[1:]) == ('"q4"', [1, 1, 0, 0, 0.63093, 1, 0.5, 1])
    assert json.loads(outcome)[0].count(">") == 1


def test_one_changed_input_is_one_changed_line(whole: Snapshot) -> None:
    after = snapshot_for(target(evidence(range(6), noise=range(4, 7))), DEFAULT)
    old, new = (Baseline.of(snapshot).text().splitlines() for snapshot in (whole, after))
    changes = [line for line in difflib.ndiff(old, new) if line[0] in "+-"]
    of_inputs = [line for line in changes if line[2:].startswith('    "q')]
    assert [line[:9] for line in of_inputs] == ['-     "q5', '+     "q5']


def test_no_name_of_an_item_and_no_text_is_in_it(tmp_path: Path) -> None:
    original = evidence_of(reference(), reference()[:, ::-1])
    items = np.array([f"secret-item-{n}" for n in range(len(original.item_ids))], dtype=object)
    made = snapshot_for(target(replace(original, item_ids=items)), DEFAULT)
    Baseline.of(made).write(tmp_path / "b.json")
    text = (tmp_path / "b.json").read_text(encoding="utf-8")
    assert "secret" not in text
    assert '"q7"' in text
    digest = hashlib.sha256(b"secret-item-0").hexdigest()
    assert digest[:6] in text
    assert digest[:7] not in text


def test_metrics_that_a_rule_compares_are_added() -> None:
    asked = rules("harm no worse by 0.1", "flip@1 <= 0.25", "ndcg@10 no worse by 0.1", "set_kept@2 <= 1")
    made = snapshot_for(target(evidence(range(5))), asked)
    assert "harm" in made.values
    assert "set_kept@2" not in made.values
    assert list(made.values).count("ndcg@10") == 1


Damage = Callable[[dict[str, Any]], object]

ROW = "input 'q7' needs its answers and a number"
DAMAGES: list[tuple[Damage, str]] = [
    (lambda c: c["columns"].pop(), "needs its answers and a number"),
    (lambda c: c["inputs"]["q7"].pop(), ROW),
    (lambda c: c["columns"].pop(0), "columns are 'answers' and metrics"),
    (lambda c: c["columns"].__setitem__(1, "flop@1"), "did you mean flip@1"),
    (lambda c: c["inputs"].pop("q7"), "n_inputs is 60, and there are 59"),
    (lambda c: c["inputs"]["q7"].__setitem__(1, "1"), ROW),
    *((lambda c, value=value: c["inputs"]["q7"].__setitem__(1, value), "inputs.q7.1") for value in (True, [1])),
    (lambda c: c["inputs"]["q7"].__setitem__(1, 0.5), "a value for flip@1 that it cannot have"),
    (lambda c: c["inputs"]["q7"].__setitem__(5, 1.5), "a value for ndcg@10 that it cannot have"),
    (lambda c: c["inputs"]["q7"].__setitem__(5, float("nan")), "got NaN"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_damage_is_named(path: Path, damage: Damage, message: str) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    damage(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    with suppress(ValueError):  # NaN has no seal
        path.write_text(json.dumps(with_checksum(content)), encoding="utf-8")
    with pytest.raises(RunError, match=re.escape(message)) as stopped:
        Baseline.read(path)
    assert str(path) in str(stopped.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [  # figures that are possible, in the reasons for a verdict: an outcome of an input, a mean
        (r'(    "q4".*)0\.63093', r"\g<1>0.5", "was changed since"),
        (r'"flip@1": 0\.08', '"flip@1": 0.07', "was changed since"),
        (r'(    "q7".*\n)', r"\1\1", "'q7' occurs twice"),  # a conflict, of which both sides were kept
    ],
)
def test_what_was_changed_by_hand_is_refused(path: Path, old: str, new: str, message: str) -> None:
    text = path.read_text(encoding="utf-8")
    edited = re.sub(old, new, text, count=1)
    assert edited != text
    path.write_text(edited, encoding="utf-8")
    with pytest.raises(RunError, match=message):
        Baseline.read(path)


def test_line_ends_that_git_changes_are_no_damage(path: Path, whole: Snapshot) -> None:
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert Baseline.of(Baseline.read(path).snapshot()).text() == Baseline.of(whole).text()
