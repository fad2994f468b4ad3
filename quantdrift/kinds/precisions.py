"""The precisions that stored embeddings can have."""

BITS_OF = {"int8": 8, "uint8": 8, "binary": 1, "ubinary": 1, "fp16": 16, "bf16": 16}
"""Precision to the bits of a number."""
CODED = ("int8", "uint8", "binary", "ubinary")
"""Precisions whose numbers are codes."""
