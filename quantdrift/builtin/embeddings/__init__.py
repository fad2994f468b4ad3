"""Embeddings as they are stored: fewer dimensions, halves, bytes or bits."""

from collections.abc import Iterator

from quantdrift.builtin.rescoring import rescored
from quantdrift.kinds.precisions import BITS_OF, CODED
from quantdrift.kinds.stage import Advice, Option, Stage
from quantdrift.scheme import Scheme


def _mend(scheme: Scheme) -> Advice | None:
    if scheme.option("emb") in CODED and (mend := rescored(scheme)):
        return mend
    return Advice(what="Store more of each embedding: more dimensions (+dim=) or more bits (+emb=).")


def _remedies(scheme: Scheme) -> Iterator[Scheme]:
    """Finer codes, and more dimensions."""
    precision, dim = scheme.option("emb"), scheme.option("dim")
    if precision is not None:
        yield from (scheme.with_option("emb", more) for more in ("int8", "fp16") if BITS_OF[more] > BITS_OF[precision])
    if dim is not None:
        yield scheme.with_option("dim", str(2 * int(dim)))


STAGE = Stage(
    what="stored embeddings: precision and dimensions",
    kind="vectors",
    place=50,
    work="quantdrift.builtin.embeddings.work:Embeddings",
    options={
        "dim": Option(pattern="[1-9][0-9]{0,4}", values="the number of dimensions that are kept, 1 or more"),
        "emb": Option(pattern="|".join(BITS_OF), values="int8, uint8, binary, ubinary, fp16 or bf16"),
    },
    stores_codes=lambda scheme: scheme.option("emb") in CODED,
    repair_options=({"emb": "int8"},),
    remedies=_remedies,
    advice=_mend,
)
