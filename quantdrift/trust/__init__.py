"""Which quantized answers can be trusted, and what to do with the others: check and routing."""
