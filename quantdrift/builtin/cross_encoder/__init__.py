"""Cross-encoders, which read a query and a document together."""

from quantdrift.kinds.encoder import EncoderKind

KIND = EncoderKind(
    what="a cross-encoder, which reranks what a search has found (--shortlist RUN)",
    uses=("shortlist",),
    load="quantdrift.builtin.cross_encoder.work:load_cross_encoder",
    accepts="quantdrift.models.files.kinds:is_cross_encoder",
    place=60,
)
