"""A folder in BEIR layout: corpus.jsonl, queries.jsonl and, where there are labels, qrels/test.tsv."""

import json
from collections.abc import Mapping
from pathlib import Path


def write_beir_folder(
    folder: Path, queries: Mapping[str, str], documents: Mapping[str, str], qrels: Mapping[str, list[str]] | None = None
) -> Path:
    folder.mkdir(parents=True)
    for name, texts in (("queries", queries), ("corpus", documents)):
        lines = [json.dumps({"_id": key, "text": text}) for key, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    if qrels is not None:
        rows = [f"{query}\t{document}\t1" for query, relevant in qrels.items() for document in relevant]
        (folder / "qrels").mkdir()
        (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]))
    return folder


def numbered(letter: str, texts: list[str]) -> dict[str, str]:
    """Texts by ids: d0, d1 and so on."""
    return {f"{letter}{n}": text for n, text in enumerate(texts)}
