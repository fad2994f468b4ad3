"""Embedding models of sentence-transformers."""

from quantdrift.kinds.encoder import EncoderKind

KIND = EncoderKind(
    what="an embedding model, which searches (leave --shortlist out)",
    uses=("search", "classes"),
    load="quantdrift.builtin.sentence.work:load_encoder",
    accepts="quantdrift.models.files.kinds:is_embedding_model",
    files=("config.json", "modules.json"),
    saved=True,
    place=90,
)
