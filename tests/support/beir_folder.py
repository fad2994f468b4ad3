"""A folder in BEIR layout: corpus.jsonl, queries.jsonl and, where there are labels, qrels/test.tsv."""

import json
from collections.abc import Mapping
from pathlib import Path


def write_beir_folder(
    folder: Path,
    queries: Mapping[str, str],
    documents: Mapping[str, str | dict[str, str]],
    qrels: Mapping[str, list[str] | dict[str, int]] | None = None,
    *,
    split: str = "test",
) -> Path:
    """Write texts, or what else a document has, such as a title or an image; labels without a grade are of 1."""
    folder.mkdir(parents=True)
    for name, texts in (("queries", queries), ("corpus", documents)):
        parts = {key: text if isinstance(text, dict) else {"text": text} for key, text in texts.items()}
        lines = [json.dumps({"_id": key, **part}) + "\n" for key, part in parts.items()]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    if qrels is not None:
        graded = {query: its if isinstance(its, dict) else dict.fromkeys(its, 1) for query, its in qrels.items()}
        rows = [f"{query}\t{document}\t{grade}" for query, its in graded.items() for document, grade in its.items()]
        (folder / "qrels").mkdir()
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]))
    return folder


def numbered(letter: str, texts: list[str]) -> dict[str, str]:
    """Texts by ids: d0, d1 and so on."""
    return {f"{letter}{n}": text for n, text in enumerate(texts)}
