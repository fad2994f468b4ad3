"""What `quantdrift repair` can try for a scheme, as its stages say."""

from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.weights import not_plain
from quantdrift.kinds.stage import STAGES, Kind
from quantdrift.scheme import FULL_BITS, Scheme
from quantdrift.spec.grammar import only, stages_of


def repaired_kinds(scheme: Scheme) -> tuple[Kind, ...]:
    """The kinds of stages that repair changes: where it cannot better quantized weights, the model stays as it is."""
    fixed = scheme.weight_bits != FULL_BITS and any(not_plain(scheme))
    return ("vectors",) if fixed else ("layers", "model", "vectors")


def remedies_of(scheme: Scheme, *kinds: Kind) -> list[Scheme]:
    """The remedies that stages of some kinds offer for a scheme; of vector stages also the scheme without each of them.

    >>> from quantdrift.spec.grammar import parse_scheme
    >>> [str(remedy) for remedy in remedies_of(parse_scheme("W4+emb=int8"), "vectors")]
    ['W4-g128-rtn+emb=fp16', 'W4-g128-rtn+emb=int8+rescore=4', 'W4-g128-rtn+emb=int8+rescore=16', 'W4-g128-rtn']
    """
    offered: list[Scheme | None] = [
        other for stage in STAGES.values() if stage.kind in kinds for other in stage.remedies(scheme)
    ]
    present = stages_of(scheme)
    if "vectors" in kinds:
        offered += [only(scheme, {*present} - {name}) for name in present if STAGES[name].kind == "vectors"]
    return [other for other in dict.fromkeys(offered) if other is not None and other != scheme]


def check_repairable(scheme: Scheme) -> None:
    """Refuse a scheme for which `quantdrift repair` has nothing to try."""
    if (reasons := [*not_plain(scheme)]) and not remedies_of(scheme, *repaired_kinds(scheme)):
        raise UnsupportedError(
            f"{scheme}: {reasons[0]}, and its other stages offer nothing to try; expected plain weights such as W4 or "
            "W3-g64, or stored embeddings or an index that change answers"
        )
