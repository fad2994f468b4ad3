"""Two folders that hold one run, and two that only look alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quantdrift.errors import RunError
from quantdrift.runs import Run, refuse_copies
from support.comparison_samples import RECORD, evidence_of, run_of, scores

VERSUS = "minilm vs openai:http://localhost:8000/v1#served"


def run(place: Path, **changes: Any) -> Run:
    evidence = evidence_of(scores()[:2], scores()[:2])
    return run_of(place, evidence, **{"spec": VERSUS, **changes})


@pytest.mark.parametrize("digest", ["1234", None])
def test_one_run_in_two_folders_is_refused_and_both_are_named(digest: str | None, tmp_path: Path) -> None:
    made = {"candidate_fingerprint": digest}
    runs = [run(tmp_path / name, model=made) for name in ("a", "b")]
    with pytest.raises(RunError, match=r"would count twice: .*a and .*b") as error:
        refuse_copies(runs)
    assert "give only one of them" in str(error.value)
    refuse_copies(runs[:1])
    refuse_copies([])


@pytest.mark.parametrize("digest", ["5678", None])
def test_a_server_that_has_another_model_under_the_name_gives_another_run(digest: str | None, tmp_path: Path) -> None:
    first = run(tmp_path / "a", model={"candidate_fingerprint": "1234"})
    second = run(tmp_path / "b", model={"candidate_fingerprint": digest})
    refuse_copies([first, second])
    with pytest.raises(RunError, match=r"would count twice: .*a and .*c"):
        refuse_copies([first, second, run(tmp_path / "c", model={"candidate_fingerprint": "1234"})])


@pytest.mark.parametrize(
    "change",
    [
        {"spec": "minilm@W3"},
        {"model": {"fingerprint": "another reference"}},
        {"data": {"name": "another name"}},
        {"data": {"fingerprint": "other texts"}},
        {"data": {"split": "dev"}},
        {"data": {"n_documents": 5}},
        {"settings": {"batch_size": 64}},
    ],
)
def test_what_differs_in_one_of_these_is_no_copy(change: dict[str, Any], tmp_path: Path) -> None:
    refuse_copies([run(tmp_path / "a"), run(tmp_path / "b", **change)])


def test_what_a_run_does_not_rest_on_makes_no_other_run(tmp_path: Path) -> None:
    later = {"times": {"started": "later"}, "data": {**RECORD["data"], "warnings": ["a word"]}}
    with pytest.raises(RunError, match="would count twice"):
        refuse_copies([run(tmp_path / "a"), run(tmp_path / "b", **later)])
