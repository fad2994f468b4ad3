"""What `quantdrift repair` can try for a scheme: what its stages offer, and whether it searches for better weights."""

from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.weights import not_plain
from quantdrift.kinds.stage import STAGES, Kind
from quantdrift.scheme import FULL_BITS, Scheme
from quantdrift.spec.grammar import only, stages_of


def remedies_of(scheme: Scheme, *kinds: Kind, thorough: bool = False) -> list[Scheme]:
    """The schemes that stages of some kinds, by default of all, offer in place of a scheme.

    Of vector stages also the scheme without each of them, such as exact search in place of an index. Where weights are
    quantized in a way that repair cannot better, the model stays as it is.
    """
    fixed = scheme.weight_bits != FULL_BITS and any(not_plain(scheme))
    wanted = [stage for stage in STAGES.values() if stage.kind in (kinds or ("layers", "model", "vectors"))]
    offered: list[Scheme | None] = []
    for stage in wanted:
        if stage.kind == "vectors" or not fixed:
            offered += [*stage.remedies(scheme), *(stage.slow_remedies(scheme) if thorough else ())]
    present = stages_of(scheme)
    for name in present:
        if STAGES[name].kind == "vectors" and STAGES[name] in wanted:
            offered.append(only(scheme, {*present} - {name}))
    return [other for other in dict.fromkeys(offered) if other is not None and other != scheme]


def check_repairable(scheme: Scheme) -> None:
    """Refuse a scheme for which `quantdrift repair` has nothing to try."""
    if (reasons := [*not_plain(scheme)]) and not remedies_of(scheme):
        raise UnsupportedError(
            f"{scheme}: {reasons[0]}, and its other stages offer nothing to try; expected plain weights such as W4 or "
            "W3-g64, or stored embeddings or an index that change answers"
        )
