"""Rescoring: the first documents that codes have found are scored again with uncoded queries."""

from collections.abc import Iterator

from quantdrift.kinds import stage as stages
from quantdrift.kinds.precisions import CODED
from quantdrift.kinds.stage import Advice, Option, Stage
from quantdrift.scheme import Scheme


def _check(scheme: Scheme) -> str | None:
    if any(stage.in_(scheme) and stage.stores_codes(scheme) for stage in stages.STAGES.values()):
        return None
    return f"+rescore= scores again documents that codes found; expected it beside +index= or +emb={', '.join(CODED)}"


def rescored(scheme: Scheme) -> Advice | None:
    """Return the advice to rescore; None if the scheme does already."""
    if scheme.option("rescore") is not None:
        return None
    more = scheme.with_option("rescore", "4")
    return Advice(what="Score the first answers again with uncoded queries.", scheme=more, command="run")


def _remedies(scheme: Scheme) -> Iterator[Scheme]:
    """More documents to rescore, where codes have found them."""
    if _check(scheme) is None:
        factor = int(scheme.option("rescore", "1"))
        yield from (scheme.with_option("rescore", str(times * factor)) for times in (4, 16))


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
    remedies=_remedies,
    advice=rescored,
    in_waterfall=False,
)
