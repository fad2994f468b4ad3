"""Words of sentences: a path as it is typed."""

from pathlib import Path

import pytest

from quantdrift.base.text import as_typed


def test_a_path_is_typed_from_the_current_folder_where_it_lies_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    typed = {name: as_typed(name) for name in (tmp_path / "a run", "a/../b", "./faq.csv", tmp_path.parent / "other")}
    assert list(typed.values()) == ["'a run'", "a/../b", "faq.csv", str(tmp_path.parent / "other")]
