"""Sparse models (SPLADE), which compare by products of term weights."""

from quantdrift.kinds.encoder import EncoderKind
from quantdrift.kinds.stage import Option, Stage

KIND = EncoderKind(
    what="a sparse model, which searches by products of term weights",
    uses=("search",),
    load="quantdrift.builtin.sparse.work:load_sparse",
    accepts="quantdrift.models.files.kinds:is_sparse",
    in_memory={"SparseEncoder": "quantdrift.builtin.sparse.work:sparse_of"},
    saved=True,
    place=45,
)
STAGE = Stage(
    what="sparse embeddings: the terms that are kept of a document",
    kind="vectors",
    place=46,
    work="quantdrift.builtin.sparse.work:TermWeights",
    options={"terms": Option(pattern="[1-9][0-9]{0,5}", values="how many terms of the largest weights are kept")},
)
