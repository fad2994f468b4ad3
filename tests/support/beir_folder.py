"""A folder in BEIR layout: corpus.jsonl, queries.jsonl and, where there are labels, qrels/test.tsv."""

import json
from collections.abc import Mapping
from pathlib import Path


def write_beir_folder(
    folder: Path,
    queries: Mapping[str, str],
    documents: Mapping[str, str | dict[str, str]],
    qrels: Mapping[str, list[str]] | None = None,
    *,
    split: str = "test",
) -> Path:
    """Write texts, or what else a document has, such as a title or an image."""
    folder.mkdir(parents=True)
    for name, texts in (("queries", queries), ("corpus", documents)):
        parts = {key: text if isinstance(text, dict) else {"text": text} for key, text in texts.items()}
        lines = [json.dumps({"_id": key, **part}) + "\n" for key, part in parts.items()]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    if qrels is not None:
        rows = [f"{query}\t{document}\t1" for query, relevant in qrels.items() for document in relevant]
        (folder / "qrels").mkdir()
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]))
    return folder


def numbered(letter: str, texts: list[str]) -> dict[str, str]:
    """Texts by ids: d0, d1 and so on."""
    return {f"{letter}{n}": text for n, text in enumerate(texts)}
