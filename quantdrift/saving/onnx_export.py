"""A transformers model as an ONNX graph whose inputs are token ids and whose output is states."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.errors import MissingExtraError, UnsupportedError

__all__ = [
    "OUTPUT",
    "export_graph",
    "model_inputs",
    "need_exporter",
    "save_graph",
    "transformer_of",
]

OUTPUT = "last_hidden_state"
_ONE_FILE = 1_900_000_000
"""Bytes of weights that go into the .onnx file itself; protobuf ends at 2 GiB."""


def need_exporter() -> None:
    """Ask for the packages that exporting and running needs.

    Raises:
        MissingExtraError: one of them is not installed.
    """
    for package in ("onnxscript", "onnx_ir", "onnxruntime"):
        try:
            __import__(package)
        except ImportError as error:
            raise MissingExtraError(package, "onnx", needed_for="writing ONNX") from error


def transformer_of(model: Any) -> nn.Module:
    """The transformers model inside a SentenceTransformer, which is what gets exported.

    Raises:
        UnsupportedError: the first module is none, or not its last hidden state is what is used.
    """
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 -- seconds to import

    from quantdrift.models.onnx_encoder import TransformerModule  # noqa: PLC0415 -- as above

    first: Any = model[0] if isinstance(model, SentenceTransformer) and len(model) else model
    if type(first) is not TransformerModule:
        raise UnsupportedError(
            "ONNX is written of sentence-transformers models that begin with a Transformer module; "
            f"this one begins with {type(first).__module__}.{type(first).__name__}. "
            "Use --format safetensors"
        )
    config = getattr(first, "modality_config", {}).get("text", {})  # new in version 6
    taken = config.get("method_output_name", OUTPUT)
    if config.get("method", "forward") != "forward" or taken != OUTPUT:
        raise UnsupportedError(
            f"ONNX is written of models whose text embedding begins with {OUTPUT}; this one takes "
            f"{taken} of {config['method']}(). Use --format safetensors"
        )
    transformer: nn.Module = first.auto_model
    return transformer


def model_inputs(model: Any, transformer: nn.Module, texts: Sequence[str]) -> dict[str, Tensor]:
    """What a SentenceTransformer gives its transformers model for some texts, as one batch."""
    prepare = getattr(model, "preprocess", None) or model.tokenize  # its name before version 6
    known = inspect.signature(transformer.forward).parameters
    return {
        name: value.to(next(transformer.parameters()).device)
        for name, value in prepare(list(texts)).items()
        if isinstance(value, Tensor) and name in known
    }


def export_graph(transformer: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
    """Trace a transformers model; batch and sequence are free.

    Initializers keep the names of parameters, with "model." before them. They are not copied: what
    they hold is what the parameters hold when the graph is saved.

    Args:
        transformer: in evaluation mode.
        inputs: names to int64 [batch, sequence], both larger than 1.

    Returns:
        An onnx_ir.Model.

    Raises:
        UnsupportedError: torch cannot export this architecture; says why.
    """
    import onnx_ir as ir  # noqa: PLC0415 -- an optional extra

    free = torch.export.Dim.DYNAMIC
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                _States(transformer, list(inputs)).eval(),
                tuple(inputs.values()),
                input_names=list(inputs),
                output_names=[OUTPUT],
                dynamo=True,  # the older exporter bakes the length of the example in
                dynamic_shapes=(tuple({0: free, 1: free} for _ in inputs),),
                optimize=False,  # folding would rename weights; onnxruntime optimizes when it loads
                verbose=False,
            )
    except Exception as error:  # the exporter's own, or whatever the model's code raises
        raise UnsupportedError(
            f"torch {torch.__version__} cannot export {type(transformer).__name__} to ONNX: "
            f"{_root_of(error)}. Use --format safetensors"
        ) from error
    assert program is not None  # it is None only where a file is asked for
    model = program.model
    (states,) = model.graph.outputs
    for value in (*model.graph.inputs, states):
        rest = () if value is not states or states.shape is None else tuple(states.shape)[2:]
        value.shape = ir.Shape(["batch", "sequence", *rest])
    return model


def save_graph(model: Any, path: Path) -> list[Path]:
    """Write a graph, without what it does not use; large weights go into a file beside it.

    Args:
        model: an onnx_ir.Model.
        path: the .onnx file.

    Returns:
        The files that were written.
    """
    import onnx_ir as ir  # noqa: PLC0415 -- an optional extra
    from onnx_ir.passes import common  # noqa: PLC0415 -- an optional extra

    common.RemoveUnusedNodesPass()(model)
    common.ClearMetadataAndDocStringPass()(model)  # it names files of the machine it was made on
    model.graph.name = "quantdrift"
    model.opset_imports["com.microsoft"] = 1
    weights = model.graph.initializers.values()
    n_bytes = sum(value.const_value.nbytes for value in weights if value.const_value is not None)
    beside = None if n_bytes <= _ONE_FILE else f"{path.name}.data"
    path.parent.mkdir(parents=True, exist_ok=True)
    ir.save(model, path, external_data=beside)
    return [path] if beside is None else [path, path.with_name(beside)]


def _root_of(error: BaseException) -> str:
    """The error that began it, in a line; the exporter's own are pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


class _States(nn.Module):
    """A transformers model that takes its inputs by position and returns one tensor."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model = model
        self._names = names

    def forward(self, *inputs: Tensor) -> Tensor:
        states: Tensor = self.model(**dict(zip(self._names, inputs, strict=True)))[OUTPUT]
        return states


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's warnings on what it did not find and what it renamed."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
