"""Folders and files of models: what their configuration says, and candidates that are there whole or not at all."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from quantdrift.base.errors import MissingExtraError, RunError, UnsupportedError
from quantdrift.models.files.checkpoint import find_checkpoint, full_precision_source, nominal_bits, refuse_missing
from quantdrift.models.files.saved import check_place, check_weights, digests_of, read_record, write_folder

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


# --- a candidate's folder ----------------------------------------------------------------------------


def write(text: str) -> Any:
    def fill(folder: Path) -> dict[str, Any]:
        (folder / "part").mkdir()
        (folder / "part" / "weights").write_text(text)
        return {"spec": text, "bits_per_weight": {"linear": 4.0}}

    return fill


def test_an_earlier_candidate_is_replaced_as_a_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_folder(out, write("one"))

    def other(folder: Path) -> dict[str, Any]:
        (folder / "other").write_text("two")
        return {"spec": "two", "bits_per_weight": {}}

    write_folder(out, other)
    assert sorted(entry.name for entry in out.iterdir()) == ["other", "scheme.json"]
    assert read_record(out)["files"] == {"other": 3}
    assert list(tmp_path.iterdir()) == [out]  # nothing is left beside it


def test_a_place_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    write_folder(tmp_path / "own", write("one"))
    (tmp_path / "own" / "notes.txt").write_text("mine")
    for name, named in (("file", "file"), ("model", "config.json"), ("own", "notes.txt")):
        with pytest.raises(RunError, match=rf"not a saved candidate: {named};"):
            check_place(tmp_path / name)
    (tmp_path / "own" / "notes.txt").unlink()
    (tmp_path / "own" / "data").symlink_to(tmp_path / "model")  # the link would be lost
    with pytest.raises(RunError, match=": data;"):
        write_folder(tmp_path / "own", write("two"))
    (tmp_path / "empty").mkdir()
    check_place(tmp_path / "empty")
    check_place(tmp_path / "new")


@pytest.mark.parametrize(
    "changed",
    [{"bits_per_weight": {"linear": "four"}}, {"base_model": ["minilm"]}, {"layers": [{"name": 5}]}, {"spec": None}],
    ids=str,
)
def test_a_record_with_entries_of_other_kinds_is_damaged(changed: dict[str, Any], tmp_path: Path) -> None:
    write_folder(tmp_path / "w4", write("one"))
    record = {**json.loads((tmp_path / "w4" / "scheme.json").read_text()), **changed}
    del record["digest"]  # as whoever edits it does
    (tmp_path / "w4" / "scheme.json").write_text(json.dumps(record))
    with pytest.raises(RunError, match=r"scheme\.json is damaged"):
        read_record(tmp_path / "w4")
    with suppress(RunError):  # a place to write to is looked at all the same
        check_place(tmp_path / "w4")


def test_weights_and_settings_that_are_not_those_that_were_written_are_refused(tmp_path: Path) -> None:
    def fill(folder: Path) -> dict[str, Any]:
        record = write("one")(folder)
        for name in ("model.safetensors", "2_Dense/model.safetensors", "config.json", "README.md"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(name)
        return {**record, "weights": digests_of(folder)}

    record = write_folder(tmp_path, fill)
    assert sorted(record["weights"]) == ["2_Dense/model.safetensors", "config.json", "model.safetensors"]
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / "added.json").write_text("{}")
    check_weights(tmp_path, record)
    check_weights(tmp_path, {})  # older ones do not say
    for name in record["weights"]:
        (tmp_path / name).write_text(name.replace("o", "n", 1))  # as long as it was
        with pytest.raises(RunError, match=f"{name} is not what scheme.json was written for"):
            check_weights(tmp_path, record)
        (tmp_path / name).write_text(name)
    for change in (Path.touch, Path.unlink):
        file = tmp_path / ("model-2.safetensors" if change is Path.touch else "model.safetensors")
        change(file)
        with pytest.raises(RunError, match=f"{file} is not what"):
            check_weights(tmp_path, record)
        (tmp_path / "model-2.safetensors").unlink(missing_ok=True)
    scheme = tmp_path / "scheme.json"
    scheme.write_text(scheme.read_text().replace("4.0", "5.0"))
    with pytest.raises(RunError, match="it was changed since"):
        read_record(tmp_path)
