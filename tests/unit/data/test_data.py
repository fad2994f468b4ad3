"""Reading a folder in BEIR layout: texts and images by hand, then the ways in which one is broken."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quantdrift.base.errors import DataError
from quantdrift.data.images import Images
from quantdrift.data.labelled import limited, sampled
from quantdrift.data.retrieval import RetrievalDataset, facts_of, keeping_own_ids, read_beir_folder
from support.small_clip import image_search

CORPUS = """\
{"_id": "d1", "title": "Cats", "text": "They purr."}
{"_id": "d2", "title": "", "text": " Dogs bark. "}
{"_id": 3, "text": "Fish swim."}
"""
QUERIES = """\
{"_id": "q1", "text": " who purrs? "}
{"_id": "q2", "text": "who barks?"}
{"_id": "q3", "text": "who flies?"}
"""
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\td2\t1\nq3\td1\t-1\n"

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a folder; an argument of None leaves the file out."""

    def write_folder(
        corpus: str | bytes | None = CORPUS, queries: str | bytes | None = QUERIES, qrels: str | bytes | None = QRELS
    ) -> Path:
        folder = tmp_path / "animals"
        (folder / "qrels").mkdir(parents=True)
        for name, content in (("corpus.jsonl", corpus), ("queries.jsonl", queries), ("qrels/test.tsv", qrels)):
            if content is not None:
                raw = content if isinstance(content, bytes) else content.encode()
                (folder / name).write_bytes(raw)
        return folder

    return write_folder


def dataset(**changes: object) -> RetrievalDataset:
    parts: dict[str, object] = {
        "name": "two",
        "query_ids": ("q1", "q2"),
        "queries": ("a", "b"),
        "document_ids": ("d1", "d2"),
        "documents": ("c", "d"),
        "qrels": {"q1": {"d1": 1}, "q2": {"d2": 1}},
        "split": "test",
    }
    return RetrievalDataset(**(parts | changes))  # type: ignore[arg-type]  # wrong ones on purpose


# --- a good folder ---------------------------------------------------------------------------


def test_texts_ids_and_labels_are_read_in_file_order(write: Write) -> None:
    data = read_beir_folder(write())
    assert (data.name, data.split) == ("animals", "test")
    assert data.document_ids == ("d1", "d2", "3")
    assert data.documents == ("Cats They purr.", "Dogs bark.", "Fish swim.")
    # mteb strips documents and leaves queries as they are.
    assert dict(zip(data.query_ids, data.queries, strict=True)) == {"q1": " who purrs? ", "q2": "who barks?"}
    assert data.qrels == {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}}


def test_without_labels_every_query_is_kept(write: Write) -> None:
    data = read_beir_folder(write(qrels=None))
    assert data.query_ids == ("q1", "q2", "q3")
    assert data.warnings == ("no relevance labels: drift is measured, relevance metrics are not",)


def test_header_blank_lines_crlf_byte_order_mark_and_float_scores_do_not_matter(write: Write) -> None:
    qrels = "\ufeff\r\nq1\td1\t2.0\r\n\r\nq1\td2\t0\r\nq2\td2\t1.\r\nq3\td1\t-1"
    folder = write(corpus="\ufeff" + CORPUS.replace("\n", "\r\n\r\n"), queries="\n" + QUERIES, qrels=qrels)
    data = read_beir_folder(folder)
    assert data.qrels == {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}}
    assert data.documents == ("Cats They purr.", "Dogs bark.", "Fish swim.")


def test_gzipped_files_read_the_same(write: Write) -> None:
    folder = write()
    plain = read_beir_folder(folder)
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
        (folder / name).unlink()
    assert read_beir_folder(folder) == plain


def test_what_is_tolerated_is_told(write: Write) -> None:
    corpus = CORPUS + '{"_id": "d4", "title": null, "text": " "}\n'
    qrels = QRELS + "q1\td9\t1\nq2\td17\t1\nq8\td1\t1\nq1\td1\t2\nq1\td1\t2\n"
    data = read_beir_folder(write(corpus=corpus, qrels=qrels))
    assert (data.documents[3], data.qrels["q1"]["d1"]) == ("", 2)
    assert data.warnings == (
        "queries left out of 3, as test.tsv has no judgement above 0 of them: 1 (q3)",
        "empty documents: 1 (d4)",
        "judgements of queries that are not there: 1 (q8)",
        "judgements of documents not in the corpus: 2 (d9, d17)",
    )


# --- broken lines of corpus and queries, always the second or third line ------------------------

GOOD = '{"_id": "d1", "text": "x"}\n'


BROKEN_LINES = {  # of a corpus; the blank line counts, as it does in an editor
    '{"_id": "d2", "text": "x"': r"line 3, column 26: expected a JSON object",
    '["d2", "x"]': r"line 3: expected a JSON object",
    "[" * 100_000: r"line 3.*: expected a JSON object",
    '{"id": "d2", "text": "x"}': r'line 3: "_id" is missing; the keys are id, text\. ',
    '{"_id": "", "text": "x"}': r'line 3: "_id" is empty',
    '{"_id": 1.5, "text": "x"}': r'line 3: "_id" must be a string; got float 1\.5',
    '{"_id": "d2", "text": 7}': r'line 3: "text" must be a string; got int 7',
    '{"_id": "d2", "text": "a\\ud83d"}': r'line 3: "text" holds half .*\\ud83d at character 2',
    '{"_id": "d1", "text": "y"}': r"line 3: .*unique; 'd1' is already on line 1",
}
BROKEN_JUDGEMENTS = {
    "q2\td2": r"line 3: expected 3 tab-separated columns .*; got 2 in 'q2\\td2'",
    "q2 0 d2 1": r"line 3: expected 3 tab-separated columns .*; got 1 in 'q2 0 d2 1'",
    "q2\td2\thigh": r"line 3: the score must be a whole number; got 'high'",
    "q2\td2\t0.5": r"line 3: .*whole number; got '0\.5'",
    "q2\td2\t99999999999": r"line 3: .*whole number",
}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        *(({"corpus": f"{GOOD}\n{line}\n"}, rf"corpus\.jsonl, {message}") for line, message in BROKEN_LINES.items()),
        *(
            ({"qrels": f"query-id\tcorpus-id\tscore\nq1\td1\t1\n{line}\n"}, rf"test\.tsv, {message}")
            for line, message in BROKEN_JUDGEMENTS.items()
        ),
        ({"corpus": None}, r"has no corpus\.jsonl; it holds qrels, queries\.jsonl\. Expected"),
        ({"corpus": GOOD.encode() + b'{"_id": "d2", "text": "caf\xe9"}'}, "line 2: expected UTF-8; 0xe9, byte 27"),
        ({"corpus": '{"_id": 1, "text": "x"}\n{"_id": "1", "text": "y"}\n'}, r"line 2: .*'1' is already on line 1"),
        ({"corpus": '{"_id": "d1", "title": 5, "text": "x"}\n'}, r'line 1: "title" must be a string; got int 5'),
        ({"queries": "\n \n"}, r"queries\.jsonl is empty; at least one line"),
        ({"qrels": "q1\t1\td1\nq2\td2\t1\n"}, r"test\.tsv, line 1: .*whole number; got 'd1'"),
        ({"qrels": "query-id\tcorpus-id\tscore\n"}, r"test\.tsv holds no judgement"),
        ({"qrels": "d1\tq1\t1\nd2\tq2\t1\n"}, r"test\.tsv: no judgement names"),
        ({"qrels": "q1\td1\t0\nq2\td2\t-1\n"}, r"test\.tsv: no query has a judgement above 0"),
    ],
)
def test_what_is_broken_or_missing_is_named(write: Write, parts: dict[str, str | bytes | None], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_beir_folder(write(**parts))


def test_judgements_of_trec_are_those_of_beir(write: Write) -> None:
    trec = "q1 0 d1 1\nq2\t0  d2 2\n"
    folder = write(qrels=trec)
    assert dict(read_beir_folder(folder).qrels) == {"q1": {"d1": 1}, "q2": {"d2": 2}}
    (folder / "qrels" / "test.tsv").write_text(f"{trec}q2\td1\t1\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"line 3: .*got 3"):
        read_beir_folder(folder)


OWN = """\
{"_id": "q1", "title": "Cats", "text": " who purrs?"}
{"_id": "q2", "text": "who barks? "}
{"_id": "q3", "text": "another text"}
{"_id": "d1", "text": "who purrs?"}
"""


def test_queries_with_the_id_and_text_of_a_document_leave_it_out(write: Write) -> None:
    """With or without its title, as ArguAna has it; equal ids of other texts tell nothing."""
    data = read_beir_folder(write(corpus=OWN, qrels="q1\td1\t1\nq2\tq2\t1\nq2\td1\t1\nq3\tq3\t2\n"))
    assert data.own == {"q1", "q2"}
    assert data.own_rows is not None
    assert data.own_rows.tolist() == [0, 1, -1]
    (note,) = (note for note in data.warnings if "themselves" in note)
    assert all(part in note for part in ("2 (q1, q2)", "1 of them are judged relevant to themselves"))
    assert data.qrels["q2"] == {"q2": 1, "d1": 1}  # as in BEIR, whose nDCG counts it as not found
    kept = keeping_own_ids(data, True)
    assert (kept.own_rows, kept.own_ids, data.own_ids) == (None, "kept", "left out")
    assert kept.fingerprint == data.fingerprint
    assert facts_of(kept) != facts_of(data)
    assert (limited(data, 1).own, facts_of(dataset())) == ({"q1"}, ["two", "test", dataset().fingerprint])


def test_a_damaged_gzip_file(write: Write) -> None:
    folder = write(corpus=None)
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(CORPUS.encode())[:-12])
    with pytest.raises(DataError, match=r"corpus\.jsonl\.gz .*line \d"):
        read_beir_folder(folder)


# --- a dataset made without files ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queries": ("a",)}, r"dataset 'two', query ids: .*got \[2, 1\]"),
        ({"query_ids": (), "queries": ()}, r"query ids: .*at least one"),
        ({"document_ids": ("d1", "d1")}, r"document ids: every id must be unique; d1"),
        ({"documents": ("c", None)}, r"the text of document 'd2' must be a string; got NoneType"),
        ({"queries": ("a", "\ud83d")}, r"the text of query 'q2' holds half of a surrogate pair"),
        ({"qrels": {"q1": {"d1": 0.5}}}, r"every grade in qrels must be an integer"),
        ({"qrels": {"x": {"y": 1}}}, r"no judgement names"),
    ],
)
def test_parts_that_do_not_fit(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        dataset(**changes)


def test_the_fingerprint_is_stable_across_releases() -> None:
    # Stored runs hold it: a change here makes every stored run look like one on other data.
    assert dataset().fingerprint == "e792c90515d23b00058a02d637988c53"


# --- images ------------------------------------------------------------------------------------------


def test_documents_are_images_and_queries_texts(tmp_path: Path) -> None:
    data = read_beir_folder(image_search(tmp_path / "data", n_images=3, n_queries=5))
    assert data.kinds == ("text", "image")
    assert data.document_ids == ("i0", "i1", "i2")
    with Image.open(tmp_path / "data" / "images" / "1.png") as image:
        assert np.array_equal(data.documents[1], np.asarray(image))
    assert data.warnings == ()


def test_another_picture_is_other_data(tmp_path: Path) -> None:
    folder = image_search(tmp_path / "data", n_images=3, n_queries=3)
    before = read_beir_folder(folder).fingerprint
    assert read_beir_folder(folder).fingerprint == before
    Image.fromarray(np.zeros((16, 16, 3), dtype=np.uint8)).save(folder / "images" / "2.png")
    assert read_beir_folder(folder).fingerprint != before


def test_an_image_is_decoded_when_it_is_asked_for() -> None:
    read = []

    def one(row: int) -> np.ndarray:
        read.append(row)
        return np.full((2, 2, 3), row, dtype=np.uint8)

    data = RetrievalDataset(
        name="d",
        query_ids=("q0", "q1"),
        queries=("a", "b"),
        document_ids=("x", "y", "z"),
        documents=Images(one, ["0", "1", "2"]),
        qrels={"q1": {"z": 1}},
        split="test",
    )
    assert sampled(data, 1, 0).kinds == ("text", "image")
    assert data.fingerprint
    assert read == []
    assert (data.documents[2].max(), read) == (2, [2])


def test_queries_can_be_images(tmp_path: Path) -> None:
    folder = image_search(tmp_path / "data", n_images=4, n_queries=2)
    lines = [{"_id": "q0", "image": "images/3.png"}, {"_id": "q1", "image": "images/0.png"}]
    (folder / "queries.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = read_beir_folder(folder)
    assert data.kinds == ("image", "image")
    assert np.array_equal(data.queries[0], data.documents[3])
    assert np.array_equal(sampled(data, 2, 0).queries[1], data.documents[0])


@pytest.mark.parametrize(
    ("image", "shown"),
    [
        *((path, "below") for path in ("../outside.png", "/etc/passwd", "images/none.png", "images/link.png")),
        *((path, "below") for path in ("images/0.png\0", "x" * 5000 + ".png", "corpus.jsonl")),
        (7, "must be a string"),
    ],
)
def test_a_path_that_is_no_image_of_the_folder_is_refused(tmp_path: Path, image: object, shown: str) -> None:
    folder = image_search(tmp_path / "data", n_images=2, n_queries=2)
    Image.fromarray(np.zeros((2, 2, 3), dtype=np.uint8)).save(tmp_path / "outside.png")
    (folder / "images" / "link.png").symlink_to(tmp_path / "outside.png")
    with (folder / "corpus.jsonl").open("a") as file:
        file.write(json.dumps({"_id": "x", "image": image}) + "\n")
    with pytest.raises(DataError, match=shown) as caught:
        read_beir_folder(folder)
    assert len(str(caught.value)) < 500


def test_texts_and_images_are_not_mixed(tmp_path: Path) -> None:
    folder = image_search(tmp_path / "data", n_images=2, n_queries=2)
    with (folder / "corpus.jsonl").open("a") as file:
        file.write(json.dumps({"_id": "x", "text": "a text"}) + "\n")
    with pytest.raises(DataError, match="line 3: "):
        read_beir_folder(folder)
