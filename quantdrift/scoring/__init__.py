"""Scoring: one pass over tiles of both arms' embeddings gives the state that evidence is made of."""
