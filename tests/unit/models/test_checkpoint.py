"""Folders and files, their methods by their configuration, and what they need."""

import json
from pathlib import Path
from typing import Any

import pytest

from quantdrift.base.errors import MissingExtraError, UnsupportedError
from quantdrift.models.files.checkpoint import find_checkpoint, full_precision_source, nominal_bits, refuse_missing

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "dataset": ["text"] * 9, "meta": None}


def folder_of(path: Path, quantization: dict[str, Any] | None, **files: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "bert"}
    config |= {} if quantization is None else {"quantization_config": quantization}
    (path / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (path / f"{name}.json").write_text(content)
    return path


def test_a_folder_is_what_its_config_says(tmp_path: Path) -> None:
    place = find_checkpoint(str(folder_of(tmp_path / "some-gptq", GPTQ)))
    assert (place.method, place.canonical, place.kind) == ("gptq", "some-gptq", "local")
    assert not place.has_modules
    assert place.body == place.folder == (tmp_path / "some-gptq").resolve()
    assert place.describe() == {
        "quantizer": "gptq",
        "nominal_bits": 4.0,
        "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, "dataset": "9 entries"},
    }


def test_the_transformer_of_a_sentence_transformers_folder_lies_where_modules_json_says(tmp_path: Path) -> None:
    folder_of(tmp_path, None, modules='[{"path": "0_Transformer"}, {"path": "1_Pooling"}]')
    folder_of(tmp_path / "0_Transformer", {"load_in_8bit": True})
    place = find_checkpoint(str(tmp_path))
    assert place.has_modules
    assert (place.body, place.method) == (tmp_path.resolve() / "0_Transformer", "bitsandbytes")


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        ({"quant_method": "awq", "w_bit": 3}, 3.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.0),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False}, 8.0),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 2}}}, 2.0),
        ({"quant_method": "torchao", "quant_type": {"default": "Int4WeightOnlyConfig"}}, 4.0),
        ({"quant_method": "torchao", "quant_type": {"default": "Float8WeightOnlyConfig"}}, 8.0),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4}, "input_activations": {"num_bits": 8}}},
            },
            4.0,
        ),
        ({"quant_method": "hqq", "quant_config": {"q": {"nbits": 4}, "k": {"nbits": 2}}}, None),
        ({"quant_method": "fp8"}, None),
        ({}, None),
    ],
)
def test_the_width_that_a_method_names(quantization: dict[str, Any], bits: float | None) -> None:
    assert nominal_bits(quantization) == bits


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"scheme": {"format": "quantdrift-candidate", "format_version": 1}}, "saved by quantdrift quantize"),
        ({"config": {"quantization_config": GPTQ}}, r"\(its config.json says gptq\)"),
        ({}, "a GGUF file"),
    ],
)
def test_a_pair_starts_at_full_precision(files: dict[str, Any], message: str, tmp_path: Path) -> None:
    for name, content in ({"config": {}} | files).items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    name = str(tmp_path) if files else "org/repo:q4.gguf"
    with pytest.raises(UnsupportedError, match=message) as refused:
        full_precision_source(name)
    assert f'quantdrift run "REFERENCE vs {name}"' in str(refused.value)


def test_a_missing_library_is_named_with_its_install_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = find_checkpoint(str(folder_of(tmp_path, {"quant_method": "awq"})))
    monkeypatch.setattr("quantdrift.base.extras.find_spec", lambda _name: None)
    with pytest.raises(MissingExtraError, match=r"awq .*quantdrift\[gptq\]"):
        refuse_missing(checkpoint)


def test_settings_of_2023_are_read_from_the_file_that_held_them(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, None, quantize_config='{"bits": 4, "group_size": 128, "desc_act": false, "sym": true}')
    checkpoint = find_checkpoint(str(folder))
    assert (checkpoint.method, nominal_bits(checkpoint.quantization)) == ("gptq", 4.0)
    with pytest.raises(UnsupportedError, match="quantized already"):
        full_precision_source(str(folder))
    folder_of(tmp_path, {"quant_method": "awq", "w_bit": 3})  # what config.json says comes first
    assert find_checkpoint(str(folder)).method == "awq"


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"no file .*x\.gguf .*FOLDER/FILE\.gguf"):
        find_checkpoint(str(tmp_path / "x.gguf"))
    with pytest.raises(UnsupportedError, match="no folder"):
        find_checkpoint(str(tmp_path / "x"))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UnsupportedError, match=r"config\.json cannot be read"):
        find_checkpoint(str(tmp_path))


def test_a_checkpoint_is_downloaded_as_far_as_torch_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    calls: list[dict[str, Any]] = []

    def download(repo: str, **patterns: Any) -> str:
        calls.append({"repo": repo, **patterns})
        return str(folder_of(tmp_path / commit, GPTQ))

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    place = find_checkpoint("org/repo")
    assert (place.kind, place.canonical, place.revision) == ("hub", "org/repo", commit)
    assert {"*.bin", "onnx/*"} <= set(calls[0]["ignore_patterns"])
    (tmp_path / commit / "q4.gguf").touch()
    place = find_checkpoint("org/repo:q4.gguf")
    assert (place.method, place.file, place.revision) == ("gguf", "q4.gguf", commit)
    assert calls[-1]["allow_patterns"] == ["q4.gguf"]
    with pytest.raises(UnsupportedError, match=r"org/repo .*q8\.gguf"):
        find_checkpoint("org/repo:q8.gguf")
