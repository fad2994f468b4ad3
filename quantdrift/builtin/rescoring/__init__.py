"""Rescoring of what codes have found: the first documents are scored again with uncoded queries."""

from quantdrift.kinds import stage as stages
from quantdrift.kinds.precisions import CODED
from quantdrift.kinds.stage import Mend, Option, Stage
from quantdrift.scheme import Scheme


def _check(scheme: Scheme) -> str | None:
    if any(stage.in_(scheme) and stage.codes(scheme) for stage in stages.STAGES.values()):
        return None
    return f"+rescore= scores again what codes have found; expected it beside +index= or +emb={', '.join(CODED)}"


def rescored(scheme: Scheme) -> Mend | None:
    """What mends the loss of codes; None where it is done already."""
    if scheme.option("rescore") is not None:
        return None
    more = scheme.with_option("rescore", "4")
    return Mend(what="Score the first answers again with uncoded queries.", scheme=more, command="run")


STAGE = Stage(
    what="what codes have found, scored again",
    kind="vectors",
    place=70,
    work="quantdrift.builtin.rescoring.work:Rescoring",
    options={
        "rescore": Option(
            pattern="[1-9][0-9]{0,3}", values="how many times more documents are looked at than are wanted, 1 or more"
        )
    },
    check=_check,
    shares=False,
)
