"""Saving the tiny encoder as ONNX, without exporting it anew for every kind of codes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

import onnx
import onnx_ir as ir

from quantdrift.engine.encoders.sentence import SentenceEncoder, load_encoder
from quantdrift.engine.saving import onnx as onnx_folder
from quantdrift.engine.saving.candidate import Candidate
from quantdrift.engine.saving.save import save_candidate
from quantdrift.models.named import resolve
from quantdrift.progress import Silent
from support.candidate_samples import tiny

EXPORT = onnx_folder.export_graph
"""The real one, whatever a test puts in its place."""


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Where it is imported: threads only stand in each other's way in models this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def _exported() -> bytes:
    transformer = onnx_folder.transformer_of(tiny())
    inputs = onnx_folder.model_inputs(tiny(), transformer, ["wing", "drag of the wing"])
    graph: bytes = ir.to_proto(EXPORT(transformer, inputs)).SerializeToString()
    return graph


def graph_of_the_reference(*_: object) -> Any:
    """The exported tiny model; no weight of a layer in it is a candidate's."""
    return ir.from_proto(onnx.load_model_from_string(_exported()))


@pytest.fixture
def one_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every export gives the tiny reference."""
    monkeypatch.setattr(onnx_folder, "export_graph", graph_of_the_reference)


def save(given: Candidate, out: Path) -> dict[str, Any]:
    return save_candidate(given, out, model_format="onnx", progress=Silent())


def load(folder: Path) -> SentenceEncoder:
    return load_encoder(resolve(str(folder)), device=torch.device("cpu"))
