"""Verdicts from numbers: two runs, buckets, the law over many runs, contenders, corpus size."""
