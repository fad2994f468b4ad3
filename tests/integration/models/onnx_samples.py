"""ONNX files built by hand, in a second, or exported by torch, and quantized by onnxruntime."""

import json
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from support.candidate_samples import WORDS, tokenizer

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

VOCABULARY, HIDDEN, INNER = len(WORDS) + 4, 32, 64
NAMES = ("input_ids", "attention_mask")
METHODS = ("dynamic", "QDQ", "QOperator", "nbits", "float16")


def parsed(text: str, **weights: Any) -> Any:
    """A model of a graph as ONNX writes it in text, and its weights by name."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> by_hand {text}')
    for name, weight in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model


def graph(
    *,
    output: str = "last_hidden_state",
    ids: str = "int64",
    extra: Sequence[str] = (),
    pooled: bool = False,
    behind: str = "",
    **more: Any,
) -> Any:
    """E[input_ids] W1, of which what is negative is cut, W2: states of tokens; their mean over positions if pooled.

    Nodes that come behind, with weights of their own, make something else of the states.
    """
    rng = np.random.default_rng(0)
    shapes = {"E": (VOCABULARY, HIDDEN), "W1": (HIDDEN, INNER), "W2": (INNER, HIDDEN)}
    weights = {name: rng.normal(size=shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    inputs = ", ".join(f"{ids}[batch,sequence] {name}" for name in ("input_ids", "attention_mask", *extra))
    sizes = ("batch", HIDDEN) if pooled else ("batch", "sequence", HIDDEN)
    behind = behind or f"{output} = {'ReduceMean <axes = [1], keepdims = 0>' if pooled else 'Identity'}(states)"
    return parsed(
        f"""({inputs}) => (float[{",".join(map(str, sizes))}] {output}) {{
            tokens = Gather(E, input_ids)
            inner = MatMul(tokens, W1)
            cut = Relu(inner)
            states = MatMul(cut, W2)
            {behind}
        }}""",
        **weights,
        **more,
    )


def endless() -> Any:
    """A loop that turns 2^62 times before it gives the states of tokens."""
    typed = "(int64 turn, bool go_on, float[] before) => (bool go_on_out, float[] after)"
    body = f"{typed} {{go_on_out = Identity(go_on) after = Mul(before, half)}}"
    loop = f"last_hidden_state = Loop <body = inside {body}> (turns, always, states)"
    return graph(behind=loop, turns=np.int64(1 << 62), always=np.bool_(True), half=np.float32(0.5))


class Positional(nn.Module):
    """A transformers model that takes its inputs by position and returns one tensor."""

    def __init__(self, model: nn.Module, names: Sequence[str], output: str) -> None:
        super().__init__()
        self.model, self.names, self.output = model, names, output

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(**dict(zip(self.names, inputs, strict=True)))[self.output]


def exported(model: nn.Module, path: Path, names: Sequence[str] = NAMES, output: str = "last_hidden_state") -> Path:
    """The graph of a transformers model, with free batch and sequence sizes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    given = tuple(torch.tensor([[1, 1, 1], [1, 1, 0]]) for _ in names)
    sizes = {name: {0: "batch", 1: "sequence"} for name in (*names, output)}
    with warnings.catch_warnings(action="ignore"):  # of what is traced
        torch.onnx.export(
            Positional(model, names, output).eval(),
            given,
            path,
            input_names=list(names),
            output_names=[output],
            dynamic_axes=sizes,
            dynamo=False,  # needs no other package
        )
    return path


def quantized(plain: Path, method: str, path: Path) -> None:
    """A graph as onnxruntime quantizes it."""
    from onnxruntime import quantization  # noqa: PLC0415 -- seconds to import
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer  # noqa: PLC0415
    from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: PLC0415

    ids = np.arange(VOCABULARY, dtype=np.int64)[None]
    every_token = iter([{"input_ids": ids, "attention_mask": np.ones_like(ids)}])
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
                SimpleNamespace(get_next=lambda: next(every_token, None), set_range=lambda *_: None),
                quant_format=quantization.QuantFormat[method],
                op_types_to_quantize=["MatMul"],
            )
    finally:
        logging.disable(logging.NOTSET)


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
    """The output of onnxruntime for texts, by hand, and their masks."""
    import onnxruntime  # noqa: PLC0415 -- seconds to import

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    given = tokenizer()(list(texts), padding=True, truncation=True, return_tensors="np")
    types = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
    feed = {value.name: given[value.name].astype(types[value.type]) for value in session.get_inputs()}
    (output,) = session.run(None, feed)
    return np.asarray(output, dtype=np.float64), given["attention_mask"].astype(np.float64)


def pooled(file: Path, texts: Sequence[str]) -> NDArray[np.float64]:
    """Mean over the tokens of a text, of length 1."""
    return means(*states(file, texts))


def means(of_tokens: NDArray[np.float64], mask: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the tokens of a text, of length 1."""
    mean = (of_tokens * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
    return np.asarray(mean / np.linalg.norm(mean, axis=1, keepdims=True))


def classifier(path: Path, labels: Sequence[str]) -> Path:
    """A folder with config.json, tokenizer and a graph that gives each text three logits."""
    head = np.random.default_rng(1).normal(size=(HIDDEN, len(labels))).astype(np.float32)
    nodes = "mean = ReduceMean <axes = [1], keepdims = 0> (states) logits = MatMul(mean, head)"
    model = graph(output="logits", pooled=True, behind=nodes, head=head)
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = len(labels)
    onnx.checker.check_model(model)
    folder(path, model=model)
    config = json.loads((path / "config.json").read_text())
    named = {str(number): label for number, label in enumerate(labels)}
    config |= {"architectures": ["BertForSequenceClassification"], "id2label": named}
    (path / "config.json").write_text(json.dumps(config | {"label2id": {v: int(k) for k, v in named.items()}}))
    return path
