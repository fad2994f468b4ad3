"""Scoring: one pass over tiles of two arms' embeddings gives what evidence is made of."""
