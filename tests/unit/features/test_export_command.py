"""`quantdrift allocate --export`: where the file goes, and that a refusal writes none."""

import json
from pathlib import Path

import pytest

from support.allocations import allocation, encoder
from support.command_line import cli

QUERY = "0.model.encoder.layer.0.attention.self.query"


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "allocation.json"
    allocation(encoder({QUERY: 8})).write(path)
    return path


def test_the_text_goes_to_standard_output_or_a_file_and_notes_to_standard_error(stored: Path) -> None:
    code, out, err = cli("allocate", "--export", stored, "--format", "torchao")
    layers = json.loads(out)["_data"]["fqn_to_config"]
    assert (
        layers[r"re:^(?:.*\.)?encoder\.layer\.0\.attention\.self\.query$"]["_data"]["weight_dtype"]["_data"] == "int8"
    )
    assert '"torchao_config.json"' in err.replace("'", '"')
    assert "quantdrift: " not in err  # as errors begin
    place = stored.parent / "new" / "types.txt"
    assert cli("allocate", "--export", stored, "--format", "llama_cpp", "-o", place)[:2] == (code, "") == (0, "")
    assert place.read_text().startswith("--tensor-type blk.0.attn_q.weight=q8_0\n")


@pytest.mark.parametrize(
    ("name", "format_name", "said"),
    [("recipe.json", "compressed_tensors", "+units=fused"), ("allocation.json", "torchao", "the allocation itself")],
)
def test_a_refusal_writes_nothing(stored: Path, name: str, format_name: str, said: str) -> None:
    before = stored.read_text()
    code, _, err = cli("allocate", "--export", stored, "--format", format_name, "-o", stored.parent / name)
    assert code == 2
    assert said in err
    assert [path.name for path in stored.parent.iterdir()] == ["allocation.json"]
    assert stored.read_text() == before
