"""Trust in quantized answers, and what to do with the others: check and routing."""
