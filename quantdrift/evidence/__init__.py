"""The evidence of a run for every input, its file, and the figures that follow from it alone."""
