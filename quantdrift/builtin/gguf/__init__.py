"""Files of llama.cpp, unpacked by transformers."""

from quantdrift.models.files.model_files import ModelFile

MODEL_FILE = ModelFile(
    what="a GGUF file, which is quantized", suffix=".gguf", encoder="quantdrift.builtin.gguf.work:load_encoder"
)
