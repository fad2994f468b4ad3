"""An allocation as the files that quantization libraries and runtimes read."""
