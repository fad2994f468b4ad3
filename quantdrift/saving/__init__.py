"""A candidate as a folder: fake-quantized safetensors, or ONNX with real low-bit weights.

`candidate` says what is saved, `save` does it, `folder` is how it lies on disk. Import them from
there: the folder can be read without torch, and the rest needs it.
"""
