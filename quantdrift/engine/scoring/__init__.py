"""From two arms' embeddings to what evidence is made of, in one pass over tiles."""
