"""TREC run files: query, Q0, document, rank, score and tag, one line per document."""

from pathlib import Path

from quantdrift.base.errors import DataError
from quantdrift.base.records import write_text
from quantdrift.base.text import some
from quantdrift.data.retrieval import excerpt
from quantdrift.evidence.record import Evidence
from quantdrift.finished import formats
from quantdrift.finished.contents import Arm, FinishedRun, Part, digest
from quantdrift.finished.formats import Format, Source


def _accepts(source: Source) -> bool:
    return not source.path.is_dir() and not source.text.lstrip().startswith("{")


def read_trec(source: Source) -> FinishedRun:
    """Read a TREC run file, plain or gzipped; the order is by score, as in trec_eval."""
    path, text = source.path, source.text
    rankings: dict[str, dict[str, float]] = {}
    for line_number, line in enumerate(text.split("\n"), start=1):
        columns = line.split(None, 5)
        if not columns:
            continue
        where = f"{path}, line {line_number}"
        try:
            query, _, document, _, written, _ = columns
            score = float(written)
        except ValueError:
            expected = formats.expected() if not rankings else "6 columns (query, Q0, document, rank, score, tag)"
            raise DataError(f"{where}: expected {expected}; got {excerpt(line)}") from None
        ranking = rankings.setdefault(query, {})
        if document in ranking:
            raise DataError(f"{where}: query {query!r} has document {document!r} twice; keep one of the lines")
        ranking[document] = score
    if not rankings:
        raise DataError(f"{path} is empty; expected {formats.expected()}")
    part = Part(kind="rankings", content=rankings)
    return FinishedRun(path=path, format="trec", name=path.name, digest=digest(text), parts={"": part})


def write_trec(path: Path, evidence: Evidence, arm: Arm, *, tag: str) -> None:
    """Write the stored ranks of one arm; scores are exact in float32."""
    top = evidence.reference_top if arm == "reference" else evidence.candidate_top
    names = [str(name) for name in evidence.item_ids]
    spaced = [name for name in (*map(str, evidence.input_ids), *names) if name.split() != [name]]
    if evidence.deltas == "none" or spaced:
        why = f"names without spaces, got {some(spaced)}" if spaced else "scores, and this run has answers alone"
        raise DataError(f"{path} was not written: a TREC run file has {why}")
    rows = zip(evidence.input_ids, top.items.tolist(), getattr(top, f"{arm}_scores").tolist(), strict=True)
    lines = [
        f"{query} Q0 {names[item]} {rank} {score:.9g} {tag}\n"
        for query, items, scores in rows
        for rank, (item, score) in enumerate(zip(items, scores, strict=True), start=1)
        if item >= 0
    ]
    write_text(path, "".join(lines), what="the ranking")


FORMAT = Format(
    expected="a TREC run file (query Q0 document rank score tag)", accepts=_accepts, read=read_trec, place=92
)
