"""Verdicts from numbers: two runs, buckets, corpus size."""
