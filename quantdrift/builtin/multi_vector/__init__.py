"""Late-interaction models (ColBERT), which compare by MaxSim over token vectors."""

from quantdrift.kinds.encoder import EncoderKind
from quantdrift.kinds.stage import Option, Stage

KIND = EncoderKind(
    what="a late-interaction model, which searches by MaxSim over token vectors",
    uses=("search",),
    load="quantdrift.builtin.multi_vector.model:load_multi_vector",
    accepts="quantdrift.models.files.kinds:is_multi_vector",
    in_memory={"MultiVectorEncoder": "quantdrift.builtin.multi_vector.model:multi_vector_of"},
    can_save=True,
    place=40,
)
STAGE = Stage(
    what="token vectors: pooling",
    kind="vectors",
    place=45,
    work="quantdrift.builtin.multi_vector.kept:Tokens",
    options={
        "pool": Option(
            pattern=r"[1-9][0-9]?(\.[0-9]{1,2})?", values="how many token vectors become one, such as 2 or 1.5"
        )
    },
)
