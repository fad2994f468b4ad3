"""The paper's tables of answers behind a search, from what `quantdrift rag` wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from quantdrift.base.errors import SpecError
from quantdrift.features.rag.answers import RECORD, Rag, RagRecord
from quantdrift.spec.grammar import Scheme, parse
from quantdrift_paper.rows import NAMES, Table, escaped

FOLDER = "rag"
"""Folder of a result of quantdrift rag in the folder of a study."""
_NONE = "--"
_ALLOCATED = {"alloc_rag_gap": "gap", "alloc_rag_mse": "reconstruction"}
_ABSENT = f"answers are asked by quantdrift rag RUN... -o STUDY/{FOLDER}"


def rag_tables(place: Path) -> dict[str, Table | str]:
    """The tables of the result that lies in a folder, or why there are none, by name.

    Raises:
        RunError: the result cannot be read.
    """
    if not (place / RECORD).is_file():
        return dict.fromkeys(("rag", *_ALLOCATED), _ABSENT)
    rag = Rag(record=RagRecord.read(place / RECORD))
    chosen = {name: _allocated(rag, criterion) for name, criterion in _ALLOCATED.items()}
    return {"rag": _answers(rag), **chosen}


def _answers(rag: Rag) -> Table | str:
    """Make a row for each uniform scheme, below the reference and the control."""
    control, reference = rag.record.control, rag.record.reference
    rows = [] if control is None else [["No passages", *_measured(rag, control.name), *[_NONE] * 3]]
    rows.append(["Full-precision retrieval", *_measured(rag, reference.name), *[_NONE] * 3])
    uniform = [(name, scheme) for name, scheme in _schemes(rag) if scheme is None or scheme.criterion is None]
    widths = {scheme.weight_bits for _, scheme in uniform if scheme is not None}
    for name, scheme in uniform:
        effect = rag.effects[name]
        counts = (effect.n_changed, effect.right_to_wrong, effect.wrong_to_right)
        before = f"W{scheme.weight_bits:g} " if scheme is not None and len(widths) > 1 else ""
        label = escaped(name) if scheme is None else f"{before}{NAMES[scheme.quantizer]}"
        rows.append([f"Quantized retrieval, {label}", *_measured(rag, name), *(f"{count:,}" for count in counts)])
    head = " & ".join(["Condition", "Exact match", "Token F1", "Gold in context", "Answers changed"])
    head += r" & Right$\to$wrong & Wrong$\to$right \\"
    if not uniform:
        return "no candidate has one width for all layers"
    return Table(columns="lcccccc", head=[head], rows=rows, about=_about(rag))


def _allocated(rag: Rag, criterion: str) -> Table | str:
    """Make a row for each quantizer with one criterion; the capture of the top 1 is measured by a capture study."""
    rows = [
        [NAMES[scheme.quantizer], _NONE, f"{rag.effects[name].n_changed:,}", f"{rag.effects[name].right_to_wrong:,}"]
        for name, scheme in _schemes(rag)
        if scheme is not None and scheme.criterion == criterion
    ]
    if not rows:
        return f"no candidate has widths chosen by {criterion}"
    return Table(columns="lccc", head=[r"Quantizer & Capture & Changed & R$\to$W \\"], rows=rows, about=_about(rag))


def _measured(rag: Rag, name: str) -> Iterator[str]:
    estimates = rag.scored[name].estimates
    for measure in ("exact_match", "token_f1", "gold_in_context"):
        value = estimates[measure].value if measure in estimates else None
        yield _NONE if value is None else rf"{100 * value:.1f}\%"


def _schemes(rag: Rag) -> list[tuple[str, Scheme | None]]:
    """Return candidates by name, in the order of the paper's quantizers; None for somebody else's model."""
    schemes: list[tuple[str, Scheme | None]] = []
    for candidate in rag.record.candidates:
        try:
            schemes.append((candidate.name, None if candidate.spec is None else parse(candidate.spec).scheme))
        except SpecError:
            schemes.append((candidate.name, None))
    order = list(NAMES)
    return sorted(schemes, key=lambda named: len(order) if named[1] is None else order.index(named[1].quantizer))


def _about(rag: Rag) -> str:
    record = rag.record
    n = f"{len(record.ids):,} questions of {record.data}, {record.n_passages} passages each"
    return f"{n}; answered by the {record.kind} {record.generator}."
