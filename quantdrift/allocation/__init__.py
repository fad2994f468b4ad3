"""Allocations of bits: the choice of a width for each layer, and its file."""
