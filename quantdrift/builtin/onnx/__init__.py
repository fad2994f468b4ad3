"""ONNX: graphs as candidates."""

from quantdrift.base.registry import Package
from quantdrift.models.files.model_files import ModelFile

MODEL_FILE = ModelFile(
    what="an ONNX graph",
    suffix=".onnx",
    packages=(
        Package(name="onnx", module="onnx", extra="onnx", note="reads ONNX models"),
        Package(name="onnxruntime", module="onnxruntime", extra="onnx", note="runs ONNX models"),
    ),
    companions=("*.json", "*.txt", "*.model", "{file}_data*", "{file}.data*"),
    encoder="quantdrift.builtin.onnx.opening:load_encoder",
    classifier="quantdrift.builtin.onnx.opening:load_classifier",
)
