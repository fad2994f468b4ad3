"""The default folder for runs is kept out of git."""

from pathlib import Path

import pytest

from quantdrift.base.paths import RUNS, keep_out_of_git


def test_git_ignores_the_default_folder_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keep_out_of_git(RUNS / "study" / "cell")  # there is no such folder yet
    RUNS.mkdir()
    keep_out_of_git(RUNS / "study" / "cell")
    assert (RUNS / ".gitignore").read_text() == "*\n"
    (RUNS / ".gitignore").write_text("mine")
    keep_out_of_git(RUNS / "run")
    assert (RUNS / ".gitignore").read_text() == "mine"
    Path("other").mkdir()
    keep_out_of_git(Path("other/run"))
    assert not (Path("other") / ".gitignore").exists()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    RUNS.mkdir()
    (RUNS / ".gitignore").symlink_to(tmp_path / "elsewhere")
    keep_out_of_git(RUNS / "run")
    assert not (tmp_path / "elsewhere").exists()
