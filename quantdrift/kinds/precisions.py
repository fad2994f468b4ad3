"""The precisions that stored embeddings can have."""

BITS_OF = {"int8": 8, "uint8": 8, "binary": 1, "ubinary": 1, "fp16": 16, "bf16": 16}
"""The bits of a number in each precision."""
CODED = ("int8", "uint8", "binary", "ubinary")
"""The precisions whose numbers are codes."""
