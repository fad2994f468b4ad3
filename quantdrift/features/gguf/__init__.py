"""Files of llama.cpp, unpacked by transformers."""

from quantdrift.checkpoints.model_files import ModelFile

MODEL_FILE = ModelFile(
    what="a GGUF file, which is quantized", suffix=".gguf", encoder="quantdrift.features.gguf.reading:load_encoder"
)
