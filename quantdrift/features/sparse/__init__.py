"""Sparse models (SPLADE), which compare by products of term weights."""

from quantdrift.encoders import EncoderKind
from quantdrift.stages import Option, Stage

KIND = EncoderKind(
    what="a sparse model, which searches by products of term weights",
    uses=("search",),
    load="quantdrift.features.sparse.model:load_sparse",
    accepts="quantdrift.checkpoints.kinds:is_sparse",
    in_memory={"SparseEncoder": "quantdrift.features.sparse.model:sparse_of"},
    saved=True,
    place=45,
)
STAGE = Stage(
    what="sparse embeddings: the terms that are kept of a document",
    kind="vectors",
    place=46,
    work="quantdrift.features.sparse.model:TermWeights",
    options={"terms": Option(pattern="[1-9][0-9]{0,5}", values="how many terms of the largest weights are kept")},
)
