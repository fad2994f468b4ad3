"""The evidence of a run: what is known of every input, its file, and what follows from it alone."""
