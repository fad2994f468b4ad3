"""Comparisons of runs: two runs, several corpora, buckets of inputs, corpus sizes."""
