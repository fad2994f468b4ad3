"""Embeddings as they are stored: fewer dimensions, halves, bytes or bits."""

from quantdrift.builtin.rescoring import rescored
from quantdrift.kinds.precisions import BITS_OF, CODED
from quantdrift.kinds.stage import Mend, Option, Stage
from quantdrift.scheme import Scheme


def _mend(scheme: Scheme) -> Mend | None:
    if scheme.option("emb") in CODED and (mend := rescored(scheme)):
        return mend
    return Mend(what="Store more of each embedding: more dimensions (+dim=) or more bits (+emb=).")


STAGE = Stage(
    what="stored embeddings: precision and dimensions",
    kind="vectors",
    place=50,
    work="quantdrift.builtin.embeddings.work:Embeddings",
    options={
        "dim": Option(pattern="[1-9][0-9]{0,4}", values="the number of dimensions that are kept, 1 or more"),
        "emb": Option(pattern="|".join(BITS_OF), values="int8, uint8, binary, ubinary, fp16 or bf16"),
    },
    codes=lambda scheme: scheme.option("emb") in CODED,
    vector_bits=lambda scheme: BITS_OF.get(scheme.option("emb", "")),
    tried=({"emb": "int8"},),
    mend=_mend,
)
