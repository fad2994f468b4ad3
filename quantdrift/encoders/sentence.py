"""Embedding models of sentence-transformers."""

from quantdrift.encoders import EncoderKind

KIND = EncoderKind(
    what="an embedding model, which searches (leave --shortlist out)",
    uses=("search", "classes"),
    load="quantdrift.engine.encoders.sentence:load_encoder",
    accepts="quantdrift.checkpoints.kinds:is_embedding_model",
    files=("config.json", "modules.json"),
    saved=True,
    place=90,
)
