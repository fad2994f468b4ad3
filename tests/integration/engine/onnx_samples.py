"""Encoders and classifiers as ONNX files that are built by hand, in a second, and quantized by onnxruntime."""

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.candidate_samples import WORDS, tokenizer

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

VOCABULARY, HIDDEN, INNER = len(WORDS) + 4, 32, 64
METHODS = ("dynamic", "QDQ", "QOperator", "nbits", "float16")


def graph(
    *, output: str = "last_hidden_state", ids: int | None = None, extra: Sequence[str] = (), pooled: bool = False
) -> Any:
    """E[input_ids] W1, of which what is negative is cut, W2: states of tokens; their mean over positions if pooled."""
    rng = np.random.default_rng(0)
    shapes = {"E": (VOCABULARY, HIDDEN), "W1": (HIDDEN, INNER), "W2": (INNER, HIDDEN)}
    weights = [onnx.numpy_helper.from_array(rng.normal(size=s).astype(np.float32) / 4, n) for n, s in shapes.items()]
    last = "states" if pooled else output
    nodes = [
        onnx.helper.make_node("Gather", ["E", "input_ids"], ["tokens"]),
        onnx.helper.make_node("MatMul", ["tokens", "W1"], ["inner"]),
        onnx.helper.make_node("Relu", ["inner"], ["cut"]),
        onnx.helper.make_node("MatMul", ["cut", "W2"], [last]),
    ]
    if pooled:
        nodes.append(onnx.helper.make_node("ReduceMean", [last], [output], axes=[1], keepdims=0))
    names = ("input_ids", "attention_mask", *extra)
    kind = ids or onnx.TensorProto.INT64
    made = onnx.helper.make_graph(
        nodes,
        "by hand",
        [onnx.helper.make_tensor_value_info(name, kind, ["batch", "sequence"]) for name in names],
        [
            onnx.helper.make_tensor_value_info(
                output, onnx.TensorProto.FLOAT, ["batch", *([] if pooled else ["sequence"]), HIDDEN]
            )
        ],
        weights,
    )
    model = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def endless() -> Any:
    """A loop that turns 2^62 times before it gives the states of tokens."""
    make, kinds = onnx.helper, onnx.TensorProto
    value = make.make_tensor_value_info
    body = make.make_graph(
        [
            make.make_node("Identity", ["go_on"], ["go_on_out"]),
            make.make_node("Mul", ["states_in", "half"], ["states_out"]),
        ],
        "body",
        [value("turn", kinds.INT64, []), value("go_on", kinds.BOOL, []), value("states_in", kinds.FLOAT, None)],
        [value("go_on_out", kinds.BOOL, []), value("states_out", kinds.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.float32(0.5), "half")],
    )
    model = graph()
    model.graph.node[-1].output[0] = "before"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.int64(1 << 62), "turns"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.bool_(True), "always"))
    model.graph.node.append(make.make_node("Loop", ["turns", "always", "before"], ["last_hidden_state"], body=body))
    return model


def quantized(plain: Path, method: str, path: Path) -> None:
    """A graph as onnxruntime quantizes it."""
    from onnxruntime import quantization  # noqa: PLC0415 -- seconds to import
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer  # noqa: PLC0415
    from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: PLC0415

    logging.disable(logging.WARNING)  # advice
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if method == "dynamic":
            quantization.quantize_dynamic(plain, path, weight_type=quantization.QuantType.QInt8)
        elif method == "nbits":
            maker = MatMulNBitsQuantizer(onnx.load(plain), bits=4, block_size=16, is_symmetric=True, accuracy_level=1)
            maker.process()
            maker.model.save_model_to_file(str(path))
        elif method == "float16":
            onnx.save(convert_float_to_float16(onnx.load(plain)), path)
        else:
            quantization.quantize_static(
                plain,
                path,
                _Calibration(),
                quant_format=quantization.QuantFormat[method],
                op_types_to_quantize=["MatMul"],
            )
    finally:
        logging.disable(logging.NOTSET)


class _Calibration:
    """Every token once."""

    def __init__(self) -> None:
        ids = np.arange(VOCABULARY, dtype=np.int64)[None]
        self.left: Iterator[dict[str, NDArray[Any]]] = iter([{"input_ids": ids, "attention_mask": np.ones_like(ids)}])

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        return next(self.left, None)

    def set_range(self, *_: int) -> None: ...


def folder(path: Path, **files: Any) -> Path:
    """A model's folder as optimum and the hub lay it: settings, a tokenizer and graphs in onnx/ by name."""
    (path / "onnx").mkdir(parents=True, exist_ok=True)
    config = {"model_type": "bert", "hidden_size": HIDDEN, "vocab_size": VOCABULARY, "max_position_embeddings": 48}
    (path / "config.json").write_text(json.dumps(config))
    tokenizer().save_pretrained(path)
    for name, model in files.items():
        onnx.save(model, path / "onnx" / f"{name}.onnx")
    return path


def states(file: Path, texts: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What onnxruntime gives of texts, by hand, and their masks."""
    import onnxruntime  # noqa: PLC0415 -- seconds to import

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    given = tokenizer()(list(texts), padding=True, truncation=True, return_tensors="np")
    types = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
    feed = {value.name: given[value.name].astype(types[value.type]) for value in session.get_inputs()}
    (found,) = session.run(None, feed)
    return np.asarray(found, dtype=np.float64), given["attention_mask"].astype(np.float64)


def pooled(file: Path, texts: Sequence[str]) -> NDArray[np.float64]:
    """Mean over the tokens of a text, of length 1."""
    return means(*states(file, texts))


def means(of_tokens: NDArray[np.float64], mask: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the tokens of a text, of length 1."""
    mean = (of_tokens * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
    return np.asarray(mean / np.linalg.norm(mean, axis=1, keepdims=True))


def classifier(path: Path, labels: Sequence[str]) -> Path:
    """A folder with config.json, tokenizer and a graph that gives each text three logits."""
    model = graph(output="before", pooled=True)
    head = np.random.default_rng(1).normal(size=(HIDDEN, len(labels))).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(head, "head"))
    model.graph.node.append(onnx.helper.make_node("MatMul", ["before", "head"], ["logits"]))
    model.graph.output.pop()
    model.graph.output.append(
        onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", len(labels)])
    )
    onnx.checker.check_model(model)
    folder(path, model=model)
    config = json.loads((path / "config.json").read_text())
    named = {str(number): label for number, label in enumerate(labels)}
    config |= {"architectures": ["BertForSequenceClassification"], "id2label": named}
    (path / "config.json").write_text(json.dumps(config | {"label2id": {v: int(k) for k, v in named.items()}}))
    return path
