"""A pair starts at full precision: what is quantized already is refused before it is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest

from quantdrift.base.errors import UnsupportedError
from quantdrift.checkpoints.checkpoint import full_precision


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"scheme": {"format": "quantdrift-candidate", "format_version": 1}}, "saved by quantdrift quantize"),
        ({"config": {"quantization_config": {"quant_method": "gptq", "bits": 4}}}, r"\(its config.json says gptq\)"),
    ],
)
def test_what_is_quantized_is_refused_by_what_its_files_say(files: dict[str, Any], said: str, tmp_path: Path) -> None:
    for name, content in ({"config": {}} | files).items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    with pytest.raises(UnsupportedError, match=said) as refused:
        full_precision(str(tmp_path))
    assert f'quantdrift run "REFERENCE vs {tmp_path}"' in str(refused.value)


def test_a_gguf_file_is_quantized() -> None:
    with pytest.raises(UnsupportedError, match="a GGUF file"):
        full_precision("org/repo:q4.gguf")
