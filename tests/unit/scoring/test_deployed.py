"""Stored embeddings and indexes: the answers are those of sentence-transformers and faiss themselves."""

import re

import faiss
import numpy as np
import pytest
import torch
from sentence_transformers.util import dot_score, semantic_search
from sentence_transformers.util.quantization import quantize_embeddings, semantic_search_faiss

from quantdrift.base.errors import UnsupportedError
from quantdrift.evidence.file import read_evidence, write_evidence
from quantdrift.measuring.flow import assemble
from quantdrift.metrics import measure
from quantdrift.scoring.deployed import DEFAULT_LIMIT, score_deployed
from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.stages import vector_stages
from quantdrift.scoring.streamed import score_embeddings
from quantdrift.spec.grammar import parse_scheme

N_DOCS, DIM = 700, 64


@pytest.fixture(scope="module")
def world():
    """Queries near documents of uneven dimensions, of length 1."""
    rng = np.random.default_rng(3)
    documents = rng.normal(size=(N_DOCS, DIM)) * np.linspace(0.3, 2, DIM) + 0.2
    queries = documents[:40] + rng.normal(size=(40, DIM)) * 0.8
    return tuple(
        (part / np.linalg.norm(part, axis=1, keepdims=True)).astype(np.float32) for part in (queries, documents)
    )


def deployed(world, options, *, similarity=Similarity.COSINE, k=20, excluded=None, candidate=None):
    stages = vector_stages(parse_scheme(f"fp+{options}"))
    return score_deployed(stages, world, candidate or world, similarity=similarity, k=k, excluded=excluded)


def ids(results):
    return [[hit["corpus_id"] for hit in hits] for hits in results]


@pytest.mark.parametrize(
    ("precision", "multiplier"),
    # two libraries need not find the same 20 of documents that tie by their bits, so of bits one is rescored
    [("uint8", None), ("ubinary", None), ("uint8", 2), ("ubinary", 2)],
)
def test_answers_are_those_of_sentence_transformers(world, precision, multiplier):
    queries, documents = world
    ranges = np.vstack([documents.min(0), documents.max(0)])
    asked = queries if multiplier else quantize_embeddings(queries, precision, ranges=ranges)
    theirs = semantic_search_faiss(
        asked,
        corpus_embeddings=quantize_embeddings(documents, precision, ranges=ranges),
        corpus_precision=precision,
        top_k=DEFAULT_LIMIT,
        ranges=ranges,
        rescore=multiplier is not None,
        rescore_multiplier=multiplier or 1,
        exact=True,
    )[0]
    state = deployed(world, f"emb={precision}" + (f"+rescore={multiplier}" if multiplier else ""))
    same_scores(state.candidate_top(), theirs)


@pytest.mark.parametrize("precision", ["int8", "binary"])
def test_signed_codes_are_compared_by_their_products(world, precision):
    ranges = np.vstack([world[1].min(0), world[1].max(0)])
    codes = [quantize_embeddings(part, precision, ranges=ranges) for part in world]
    if precision == "binary":  # bytes of eight bits, less 128
        codes = [np.unpackbits((part.astype(int) + 128).astype(np.uint8), axis=1) * 2.0 - 1 for part in codes]
    queries, documents = (torch.from_numpy(part).float() for part in codes)
    theirs = semantic_search(queries, documents, top_k=DEFAULT_LIMIT, score_function=dot_score)
    same_scores(deployed(world, f"emb={precision}").candidate_top(), theirs)


def same_scores(top, theirs):
    """Among equal scores the libraries have orders of their own, so it is scores that are compared."""
    positions, _, scores = top
    for ours, their, values in zip(positions.tolist(), ids(theirs), scores, strict=True):
        score_of = dict(zip(ours, values.tolist(), strict=True))
        assert [score_of[item] for item in their] == pytest.approx(values[:DEFAULT_LIMIT].tolist(), abs=1e-5)


@pytest.mark.parametrize(
    "name", ["HNSW16", "IVF8,Flat", "IVF8,PQ8", "PQ8", "SQ8", "RaBitQ", "OPQ8,IVF8,PQ8x4fs", "PCA32,Flat", "PQ8,RFlat"]
)
def test_answers_are_the_ids_that_faiss_gives(world, name):
    queries, documents = world
    index = faiss.index_factory(DIM, re.sub("(?<!O)PQ8(?!x)", "PQ8np", name), faiss.METRIC_INNER_PRODUCT)
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    index.train(documents)
    index.add(documents)
    theirs = index.search(queries, 20)[1]
    faiss.omp_set_num_threads(threads)
    state = deployed(world, f"index={name}")
    positions = state.candidate_top()[0]
    assert (positions == theirs).all()
    exact = (queries @ documents.T).argmax(1)
    counted = float((theirs[:, 0] != exact).mean())
    evidence = assemble(state, input_ids=list(map(str, range(40))), item_ids=list(map(str, range(N_DOCS))))
    assert measure(evidence, ["flip@1"])["flip@1"].value == pytest.approx(counted)


def test_codes_and_graph_are_told_apart(world):
    """What PQ loses is the codes'; what lists lose that are not looked into is the index's."""
    queries, documents = world
    state = deployed(world, "index=IVF8,PQ8")
    exact = state.exact.candidate_top()
    index = faiss.index_factory(DIM, "IVF8,PQ8np", faiss.METRIC_INNER_PRODUCT)
    index.train(documents)
    index.add(documents)
    index.nprobe = 8
    assert (exact[0] == index.search(queries, 20)[1]).mean() > 0.99  # but for equal scores
    evidence = assemble(state, input_ids=list(map(str, range(40))), item_ids=list(map(str, range(N_DOCS))))
    metrics = measure(evidence, ["codes.flip@1", "index.flip@1", "index.overlap@10", "flip@1"])
    by_hand = (exact[0][:, 0] != (queries @ documents.T).argmax(1)).mean()
    assert metrics["codes.flip@1"].value == pytest.approx(by_hand)
    assert metrics["index.flip@1"].value == pytest.approx((exact[0][:, 0] != state.candidate_top()[0][:, 0]).mean())
    kept = [
        len({*a[:10]} & {*b[:10]}) / 10
        for a, b in zip(exact[0].tolist(), state.candidate_top()[0].tolist(), strict=True)
    ]
    assert metrics["index.overlap@10"].value == pytest.approx(np.mean(kept))


def test_an_index_over_the_vectors_themselves_loses_only_what_its_search_misses(world):
    plain = score_embeddings(world[0], world[0], world[1], world[1], k=20)
    state = deployed(world, "index=HNSW16")
    assert (state.exact.candidate_top()[0] == plain.reference_top()[0]).all()
    assert state.delta_max.abs().max() == 0
    assert (state.reference_top()[0] == plain.reference_top()[0]).all()
    assert (state.reference_top()[1] == plain.reference_top()[1]).all()


@pytest.mark.parametrize(
    "options", ["emb=int8", "emb=bf16", "index=HNSW16", "index=IVF8,PQ8+search=nprobe=3", "dim=16"]
)
def test_it_is_the_same_every_time_and_whatever_the_number_of_threads(world, options):
    first = deployed(world, options)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    faiss.omp_set_num_threads(2)
    second = deployed(world, options)
    torch.set_num_threads(threads)
    assert (first.candidate_top()[0] == second.candidate_top()[0]).all()


def test_halves_tie_as_products_of_halves_do(world):
    rng = np.random.default_rng(5)
    near = np.repeat(world[0], 6, axis=0) + rng.normal(size=(240, DIM)) * 0.01
    world = world[0], (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)
    queries, documents = (torch.from_numpy(part).bfloat16() for part in world)
    product = (queries.float() @ documents.float().T).bfloat16().float()
    best = product.max(1).values
    tied = (product == best[:, None]).sum(1)
    assert (tied > 1).any()  # or this shows nothing
    state = deployed(world, "emb=bf16")
    scores = state.candidate_top()[2]
    assert scores[:, 0].tolist() == best.tolist()
    assert ((scores == scores[:, :1]).sum(1) == tied.clamp_max(20).numpy()).all()


def test_fewer_dimensions_are_normalized_again(world):
    state = deployed(world, "dim=16")
    cut = [part[:, :16] / np.linalg.norm(part[:, :16], axis=1, keepdims=True) for part in world]
    positions, _, scores = state.candidate_top()
    assert (positions[:, 0] == (cut[0] @ cut[1].T).argmax(1)).all()
    assert scores[:, 0] == pytest.approx((cut[0] @ cut[1].T).max(1), abs=1e-6)


@pytest.mark.parametrize("options", ["emb=int8", "emb=binary+rescore=2", "index=HNSW16", "index=IVF8,PQ8+rescore=2"])
def test_what_is_excluded_is_in_no_list(world, options):
    excluded = np.arange(40)
    excluded[3] = -1
    state = deployed(world, options, excluded=excluded)
    lists = [
        state.candidate_top()[0],
        state.reference_top()[0],
        *([state.exact.candidate_top()[0]] if state.exact else []),
    ]
    for positions in lists:
        assert not ((positions == excluded[:, None]) & (excluded[:, None] >= 0)).any()
    assert state.reference_top()[0][3, 0] == 3


def test_euclidean_distances(world):
    state = deployed(world, "index=IVF8,PQ8", similarity=Similarity.EUCLIDEAN)
    low, high = float(state.delta_min.min()), float(state.delta_max.max())
    assert -0.7 < low < high < 0.7  # scores are distances again, not squares
    with pytest.raises(UnsupportedError, match="Euclidean"):
        deployed(world, "emb=int8", similarity=Similarity.EUCLIDEAN)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("dim=65", "at most 64"),
        ("index=HNSW32X", "did you mean HNSW32"),
        ("index=IVF9000,Flat", "faiss refuses"),
        ("index=HNSW16+search=nprobes=3", "expected nprobe=1 to"),
        ("index=PQ8x16,RFlat+dim=64", "faiss refuses"),
        ("index=RQ32x10", "beside their codes"),
        ("index=OPQ8_4000,PQ8", "vectors of 4,000 numbers"),
    ],
)
def test_what_cannot_be_made_is_one_line(world, options, message):
    with pytest.raises(UnsupportedError, match=message) as error:
        deployed(world, options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("n_docs", "options", "said"), [(2, "emb=int8", True), (100, "emb=uint8", False), (2, "emb=bf16", False)]
)
def test_ranges_of_few_documents_are_said(world, n_docs, options, said):
    few = (world[0], world[1][:n_docs])
    state = score_deployed(vector_stages(parse_scheme(f"fp+{options}")), few, few, similarity=Similarity.COSINE, k=2)
    assert any("takes its ranges from 2 documents" in note for note in state.notes) == said
    assert any("step differs from dimension to dimension" in note for note in state.notes) == ("int8" in options)


@pytest.mark.parametrize(
    ("options", "codes"), [("index=HNSW16", False), ("emb=int8+index=HNSW16", True), ("emb=int8", None)]
)
def test_an_index_says_where_it_tells_little_and_stores_more_than_its_codes(world, options, codes):
    notes = " ".join(deployed(world, options).notes)
    assert ("over 700 documents says little of a larger corpus" in notes) == (codes is not None)
    assert ("64 without an index. For bytes inside the index: +index=HNSW16_SQ8, without" in notes) == bool(codes)
    many = world[0], np.tile(world[1], (2, 1))
    assert "says little" not in " ".join(deployed(many, options).notes)


def test_evidence_keeps_what_exhaustive_search_gives(world, tmp_path):
    state = deployed(world, "index=IVF8,PQ8+rescore=2")
    evidence = assemble(state, input_ids=list(map(str, range(40))), item_ids=list(map(str, range(N_DOCS))))
    write_evidence(evidence, tmp_path / "evidence.parquet")
    again = read_evidence(tmp_path / "evidence.parquet")
    for stage in ("codes", "index"):
        before, after = (part.seen(stage) for part in (evidence, again))
        for arm in ("reference_top", "candidate_top"):
            first, second = getattr(before, arm), getattr(after, arm)
            names = [
                np.array([*part.item_ids, ""], dtype=object)[top.items]
                for part, top in ((before, first), (after, second))
            ]
            assert (names[0] == names[1]).all()
            assert np.array_equal(first.candidate_scores, second.candidate_scores, equal_nan=True)
    assert evidence.part(np.array([1])).seen("codes").n_inputs == 1
