"""`quantdrift export`: where the file goes, and that a refusal writes none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quantdrift.allocation.record import write_allocation
from quantdrift.cli.export import export_command
from quantdrift.errors import RunError, UnsupportedError
from support.export_samples import allocation, encoder

QUERY = "0.model.encoder.layer.0.attention.self.query"


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "allocation.json"
    write_allocation(path, allocation(encoder({QUERY: 8})))
    return path


def test_the_text_goes_to_standard_output_and_notes_to_standard_error(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export_command(stored, "autoround", None)
    shown = capsys.readouterr()
    assert json.loads(shown.out)["encoder.layer.0.attention.self.query"]["bits"] == 8
    assert "'layer_config.json'" in shown.err
    assert "quantdrift: " not in shown.err  # as errors begin


def test_a_file_is_written_where_asked(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = stored.parent / "new" / "types.txt"
    export_command(stored, "llama_cpp", out)
    assert out.read_text().startswith("--tensor-type blk.0.attn_q.weight=q8_0\n")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"$(cat {out})" in shown.err


def test_a_refusal_leaves_no_file(stored: Path) -> None:
    out = stored.parent / "recipe.json"
    with pytest.raises(UnsupportedError, match=r"\+units=fused"):
        export_command(stored, "compressed_tensors", out)
    assert not out.exists()


def test_the_allocation_itself_is_not_written_over(stored: Path) -> None:
    with pytest.raises(RunError, match="the allocation itself"):
        export_command(stored, "autoround", stored)


def test_a_folder_cannot_be_written(stored: Path) -> None:
    with pytest.raises(RunError, match="was not written"):
        export_command(stored, "autoround", stored.parent)
