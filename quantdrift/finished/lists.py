"""Two sets of lists: how deep they are, and what their scores can tell."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from quantdrift import perturbation
from quantdrift.evidence import Evidence
from quantdrift.finished.rankings import Ranking, Rankings
from quantdrift.finished.readers.contents import Ranked

__all__ = ["Lists", "list_notes", "lists_of", "without_identical"]

_MANY = 5
"""So many inputs with the same scores are no accident."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """How deep the lists of two runs are.

    Attributes:
        a: ranks of the shortest and of the longest list of the reference.
        b: of the candidate.
        same_items: whether both lists of every input hold the same items, and may hold all.
        own_names: inputs whose first item has the name of the input, in A or B.
        made_of_ranks: which runs give every input the same scores.
    """

    a: tuple[int, int]
    b: tuple[int, int]
    same_items: bool
    own_names: int
    made_of_ranks: tuple[str, ...]


def without_identical(part: Ranked) -> Ranked:
    """The rankings without items of the name of their input."""
    kept = {
        name: {item: score for item, score in own.items() if item != name}
        for name, own in part.rankings.items()
    }
    return replace(part, rankings=kept)


def lists_of(a: Ranked, b: Ranked) -> Lists:
    """How deep the lists of two runs over the same inputs are."""
    return Lists(
        a=_depths(a),
        b=_depths(b),
        # what is known to be cut holds more
        same_items=a.depth is None
        and b.depth is None
        and all(own.keys() == b.rankings[name].keys() for name, own in a.rankings.items()),
        own_names=sum(
            _leads(name, own) or _leads(name, b.rankings[name]) for name, own in a.rankings.items()
        ),
        made_of_ranks=tuple(
            name for name, part in (("A", a), ("B", b)) if _made_of_ranks(part.rankings)
        ),
    )


def list_notes(lists: Lists, evidence: Evidence) -> list[str]:
    """What to know of the lists: one sentence each, without a full stop."""
    notes = []
    if not evidence.exact:
        notes.append(
            f"the lists of A are {_deep(lists.a)} deep and those of B {_deep(lists.b)}, compared "
            f"to rank {evidence.depth:,}; of items that only one list holds the other score is "
            "not known, so epsilon is at least what is shown, and the separation ratio at most"
        )
        if lists.same_items:
            notes.append(
                "both lists of every input hold the same items; if no others were scored (a "
                "shortlist that was ranked again), --complete says so, and epsilon is exact"
            )
    if lists.made_of_ranks:
        which = " and ".join(lists.made_of_ranks)
        notes.append(
            f"the scores of {which} are the same for every input, so they were made from ranks; "
            "gap, epsilon and separation say nothing of the model then"
        )
    elif _off_scale(evidence):
        notes.append(
            "the typical epsilon is larger than what the typical list of A spans, so the scores "
            "may be on two scales; gap, epsilon and separation say nothing then"
        )
    if lists.own_names:
        notes.append(
            f"{lists.own_names:,} inputs find an item of their own name first; where a query is "
            "itself in the corpus, leave it out with --ignore-identical-ids"
        )
    return notes


def _depths(part: Ranked) -> tuple[int, int]:
    lengths = [len(own) for own in part.rankings.values()]
    most = part.depth or max(lengths)
    return min(*lengths, most), min(max(lengths), most)


def _deep(depths: tuple[int, int]) -> str:
    least, most = depths
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def _leads(name: str, own: Ranking) -> bool:
    return name in own and own[name] == max(own.values())


def _made_of_ranks(rankings: Rankings) -> bool:
    """Whether all lists have the same scores, as far as they go."""
    lists = [sorted(own.values(), reverse=True) for own in rankings.values() if len(own) > 1]
    if len(lists) < _MANY:
        return False
    longest = max(lists, key=len)
    return all(own == longest[: len(own)] for own in lists)


def _off_scale(evidence: Evidence) -> bool:
    scores = evidence.reference_top.reference_scores.astype(np.float64)
    known = ~np.isnan(scores)
    two = known.sum(axis=1) > 1
    if not two.any():
        return False
    last = np.take_along_axis(scores, known.sum(axis=1)[:, None] - 1, axis=1)[:, 0]
    spans = (scores[:, 0] - last)[two]
    return float(np.median(perturbation.epsilon(evidence)[two])) > float(np.median(spans))
