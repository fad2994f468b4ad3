"""Cross-encoders, which read a query and a document together."""

from quantdrift.encoders import EncoderKind

KIND = EncoderKind(
    what="a cross-encoder, which reranks what a search has found (--shortlist RUN)",
    uses=("shortlist",),
    load="quantdrift.engine.encoders.cross_encoder:load_cross_encoder",
    accepts="quantdrift.checkpoints.kinds:is_cross_encoder",
    place=60,
)
