"""What is told before anything is loaded, and what no file of weights may hold."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

import torch

from quantdrift.api import drift
from quantdrift.base.errors import MissingExtraError, QuantDriftError, RunError, UnknownNameError, UnsupportedError
from quantdrift.base.records import check_writable
from quantdrift.builtin.index import refuse_index
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.candidate.refusals import check_pair, refuse_uncalibrated
from quantdrift.harness import weights_of
from quantdrift.models.files.model_files import holds_weights
from quantdrift.models.files.named import resolve
from quantdrift.models.heads import refuse_broken
from quantdrift.runs.folder import find_runs
from quantdrift.spec.grammar import Versus, parse, parse_scheme
from support.candidate_samples import candidate, rich, save
from support.versus_samples import DATASET


@pytest.mark.parametrize("name", ["HNSW32", "IVF64,PQ16", "OPQ16_64,IVF256,PQ16", "SQ8", "RaBitQ"])
def test_an_index_that_can_be_made_passes(name: str) -> None:
    pytest.importorskip("faiss")
    refuse_index(name)


def test_an_index_that_nobody_knows_is_told_with_what_is_near() -> None:
    pytest.importorskip("faiss")
    with pytest.raises(UnsupportedError, match=r"\+index=HSNW .*mean HNSW32"):
        check_pair(parse("minilm@fp+index=HSNW"), DATASET)


@pytest.mark.parametrize("name", ["HNSW32", "lancedb:IVF_PQ"])
def test_the_library_of_an_index_is_missed_before_the_model_is_loaded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("quantdrift.base.extras.find_spec", lambda _: None)
        with pytest.raises(MissingExtraError, match=re.escape(f"+index={name} needs the package")):
            check_pair(parse(f"minilm@fp+index={name}"), DATASET)
        patch.setitem(sys.modules, "faiss", None)
        with pytest.raises(UnsupportedError, match="did you mean HNSW32"):  # which needs no library
            check_pair(parse("minilm@fp+index=HNSWx"), DATASET)


def test_options_without_a_scheme_are_told_where_they_belong() -> None:
    with pytest.raises(UnknownNameError, match=re.escape("behind a scheme: minilm@fp+emb=int8+index=HNSW32")):
        resolve("minilm+emb=int8+index=HNSW32")


def test_a_folder_without_a_model_is_told_before_the_reference_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="model folder"):
        check_pair(Versus(reference="minilm", candidate=str(tmp_path)), DATASET)


def test_what_is_calibrated_needs_data() -> None:
    with pytest.raises(UnsupportedError, match="gptq is calibrated"):
        refuse_uncalibrated(parse("minilm@W4-gptq"), has_data=False)
    refuse_uncalibrated(parse("minilm@W4"), has_data=False)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_refused_by_name(value: float) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
    refuse_broken([module], "model")
    for parameter, path in ((module[0].weight, "0.weight"), (module[1].bias, "1.bias")):
        before = parameter.detach().clone()
        parameter.data.view(-1)[3] = value
        with pytest.raises(UnsupportedError, match=rf"{path} of model holds NaN or infinity"):
            QuantizedPair(module, "W4-rtn")
        parameter.data.copy_(before)


def test_a_model_in_memory_that_is_quantized_already_is_refused_as_on_the_command_line(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 -- after importorskip

    save(candidate("W4-g64", rich), tmp_path / "mine")
    model = SentenceTransformer(str(tmp_path / "mine"), device="cpu")
    for wrapped in (model, SimpleNamespace(q_model=model, doc_model=model)):
        with pytest.raises(UnsupportedError, match="saved by quantdrift"):
            weights_of(wrapped, parse_scheme("W4-rtn"), "mine")
    with pytest.raises(UnsupportedError, match="is quantized already"):
        drift(model, "W4-rtn", DATASET)


def test_data_of_a_graph_are_no_weights_of_torch(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    (tmp_path / "weights.bin").touch()
    assert not holds_weights(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    assert holds_weights(tmp_path)


def test_places_that_are_none_are_told() -> None:
    with pytest.raises(RunError, match="a file"):
        check_writable(Path("/"), what="the check")
    with pytest.raises((QuantDriftError, OSError)):
        find_runs([Path("x" * 5000)])
