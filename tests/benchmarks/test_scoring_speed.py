"""How long streamed scoring takes, as a ratio to what it cannot do without.

1,000 queries x 200,000 documents x 384 dimensions, K = 200. Each figure is the median of ratios of
runs made in turn, so that a machine that slows down slows both.
"""

import os
import statistics
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from timing import in_turn, report

from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.state import ScoreState
from quantdrift.scoring.streamed import TILE, score_embeddings

N_QUERIES, N_DOCS, DIM, K = 1_000, 200_000, 384, 200
ROUNDS = 5
SHAPE = f"{N_QUERIES:,} queries x {N_DOCS:,} documents x {DIM} dims, K = {K}"

Arms = tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture(scope="module")
def arms() -> Arms:
    """Unit vectors of a reference, and of a candidate that differs by about W4's epsilon."""
    generator = torch.Generator().manual_seed(0)

    def unit(rows: int, base: torch.Tensor | None = None) -> torch.Tensor:
        noise = torch.randn(rows, DIM, generator=generator)
        return torch.nn.functional.normalize(noise if base is None else base + 0.2 * noise / DIM**0.5)

    queries, documents = unit(N_QUERIES), unit(N_DOCS)
    return (queries, documents), (unit(N_QUERIES, queries), unit(N_DOCS, documents))


def _bare_products(arms: Arms) -> None:
    """The two matrix products, tile by tile, their results thrown away."""
    scores = torch.empty(N_QUERIES, TILE)
    for queries, documents in arms:
        for at in range(0, N_DOCS - TILE + 1, TILE):
            torch.mm(queries, documents[at : at + TILE].t(), out=scores)
        rest = documents[N_DOCS - N_DOCS % TILE :]
        torch.mm(queries, rest.t(), out=scores[:, : len(rest)].contiguous())


def _streamed(arms: Arms) -> ScoreState:
    (reference_queries, reference), (candidate_queries, candidate) = arms
    return score_embeddings(reference_queries, candidate_queries, reference, candidate, similarity=Similarity.DOT, k=K)


def test_streamed_scoring_against_bare_products(arms: Arms) -> None:
    ratios = in_turn(lambda: _streamed(arms), lambda: _bare_products(arms), ROUNDS)
    report("streamed scoring / two bare matrix products", ratios, SHAPE)


def test_streamed_scoring_against_mteb_search(arms: Arms, monkeypatch: pytest.MonkeyPatch) -> None:
    """mteb's own search over the same vectors, run for both arms."""
    pytest.importorskip("mteb")
    import mteb  # noqa: PLC0415
    from datasets import Dataset  # noqa: PLC0415
    from mteb.models import search_wrappers  # noqa: PLC0415
    from mteb.similarity_functions import dot_score  # noqa: PLC0415

    # Preparing texts for the encoder is no part of a search; there are only vectors here.
    monkeypatch.setattr(search_wrappers, "create_dataloader", lambda *_args, **_kwargs: None)

    corpus = Dataset.from_dict({"id": [str(n) for n in range(N_DOCS)], "text": [""] * N_DOCS})
    metadata = mteb.get_task("PythonDocsRetrieval").metadata
    chunk = 50_000
    asked = {"task_corpus": corpus, "corpus_chunk_size": chunk, "task_metadata": metadata, "hf_subset": "default"}
    asked |= {"hf_split": "test", "top_k": K, "similarity_fn": dot_score}
    asked |= {"encode_kwargs": {"show_progress_bar": False, "batch_size": 32}}
    asked["query_idx_to_id"] = {n: str(n) for n in range(N_QUERIES)}

    def search() -> None:
        for queries, documents in arms:
            parts = iter(documents.split(chunk))
            encode = lambda *_args, parts=parts, **_kwargs: next(parts)  # noqa: E731 -- short
            search_wrappers.chunked_full_corpus_search(query_embeddings=queries, encode_fn=encode, **asked)

    ratios = in_turn(lambda: _streamed(arms), search, 3)
    report("streamed scoring / mteb's search, both arms", ratios, SHAPE)


def test_peak_memory_beyond_the_inputs() -> None:
    """Peak resident memory of a process that scores, less what it held just before."""
    program = textwrap.dedent(
        f"""
        import resource, torch
        from quantdrift.scoring.similarity import Similarity
        from quantdrift.scoring.streamed import score_embeddings
        def vectors(n): return torch.nn.functional.normalize(torch.randn(n, {DIM}))
        arms = vectors({N_QUERIES}), vectors({N_QUERIES}), vectors({N_DOCS}), vectors({N_DOCS})
        score_embeddings(*(part[:2048] for part in arms), similarity=Similarity.DOT, k={K})
        with open('/proc/self/clear_refs', 'w') as file: file.write('5')
        def peak():
            status = open('/proc/self/status').read()
            return int(status.split('VmHWM:')[1].split()[0]) / 1024
        before = peak()
        score_embeddings(*arms, similarity=Similarity.DOT, k={K})
        print(peak() - before)
        """
    )
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("needs Linux's /proc to reset the peak")
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    print(f"\npeak memory beyond the inputs: {float(output):.0f} MB ({SHAPE})")


@pytest.mark.parametrize("modules", ["quantdrift", "quantdrift, quantdrift.runs.folder, quantdrift.metrics"])
def test_import_time(modules: str) -> None:
    """A fresh import against an empty Python start, in milliseconds."""
    extra = []
    for _ in range(15):
        seconds = []
        for program in ("pass", f"import {modules}"):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "QUANTDRIFT_HOOK": "0"})
            seconds.append(time.perf_counter() - start)
        extra.append(1000 * (seconds[1] - seconds[0]))
    print(f"\nimport {modules}: {statistics.median(extra):.1f} ms")
