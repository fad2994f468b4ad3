"""quantdrift.json beside embeddings: what is written is read back, anything else is not known."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

pytest.importorskip("beir")

from beir_letters import CORPUS, Letters

from quantdrift.allocation.stored.record import AllocatedLayer, Allocation
from quantdrift.allocation.stored.record_file import write_allocation
from quantdrift.errors import RunError
from quantdrift.measurement.retrieval import Settings
from quantdrift_beir import QuantizedPair
from quantdrift_beir.marker import MARKER, Marker, read_marker, told_of, whose_of, write_marker
from quantdrift_beir.record import Made

FILES = {"query_filename": "queries.pkl", "corpus_filename": "corpus.*.pkl"}
QUERIES = {"p": "ab", "q": "ba"}


def pair_of(scheme: str) -> QuantizedPair:
    model: Any = Letters()
    model.layer = nn.Sequential(model.layer)  # so that the layer has a name
    return QuantizedPair(model, scheme, name="letters")


def whose(scheme: str = "W4-channel") -> dict[str, Any]:
    return whose_of(pair_of(scheme), CORPUS, QUERIES, FILES)


def marker() -> Marker:
    made = Made(
        spec="letters@W4",
        model="letters",
        layers=["a"],
        never_reached=[],
        settings=asdict(Settings()),
    )
    return Marker(whose=whose(), shards=["corpus.0.pkl"], kept=["p", "q"], made=made)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write_marker(tmp_path, marker())
    assert read_marker(tmp_path) == marker()
    assert told_of(tmp_path) == "of letters@W4-channel-rtn"


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"nowhere.quantdrift\.json cannot be written: No such file"):
        write_marker(tmp_path / "nowhere", marker())


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    assert read_marker(tmp_path) is None
    assert told_of(tmp_path) == "there is no quantdrift.json, so whose they are is not known"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"null", b"[]", b'["whose", "shards"]', b"3", b"{}", b"[" * 100_000],
)
def test_what_is_no_object_is_as_if_it_were_not_known(content: bytes, tmp_path: Path) -> None:
    (tmp_path / MARKER).write_bytes(content)
    assert read_marker(tmp_path) is None
    assert told_of(tmp_path) == "its quantdrift.json cannot be read, so whose they are is not known"


def _without(part: str | None, key: str) -> Callable[[Any], Any]:
    def change(content: Any) -> None:
        del (content if part is None else content[part])[key]

    return change


def _with(part: str | None, **values: Any) -> Callable[[Any], Any]:
    return lambda content: (content if part is None else content[part]).update(values)


@pytest.mark.parametrize(
    "change",
    [
        *(_without(None, key) for key in ("whose", "shards", "kept", "made")),
        *(_without("whose", key) for key in ("spec", "scheme", "reference", "named", "data")),
        *(_without("made", key) for key in ("spec", "settings", "left_out")),
        _with(None, whose=["spec", "scheme"]),
        _with(None, whose=None),
        _with(None, shards="corpus.0.pkl"),
        _with(None, shards=[1]),
        _with(None, kept=None),
        _with(None, made=[]),
        _with("whose", spec=None),
        _with("whose", scheme=["W4"]),
        _with("made", spec=1),
        _with("made", layers=None),
        _with("made", left_out="none"),
        _with("made", left_out=True),
        _with("made", runtime=[]),
        _with("made", bits="4"),
        _with("made", invented=1),
        _with("made", settings={"invented": 1}),
    ],
)
def test_what_has_not_the_fields_that_are_written_is_not_known(
    change: Callable[[Any], Any], tmp_path: Path
) -> None:
    write_marker(tmp_path, marker())
    content = json.loads((tmp_path / MARKER).read_text())
    change(content)
    (tmp_path / MARKER).write_text(json.dumps(content))
    assert read_marker(tmp_path) is None
    assert "cannot be read" in told_of(tmp_path)


def test_what_a_file_of_somebody_else_says_is_told_on_one_clean_line(tmp_path: Path) -> None:
    write_marker(
        tmp_path, replace(marker(), whose={**whose(), "spec": "a\x1b[2J\n::error::\u202eb"})
    )
    assert told_of(tmp_path) == "of a\ufffd[2J ::error::\ufffdb"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / MARKER)
    assert read_marker(tmp_path) is None


def test_every_field_of_a_measurement_is_looked_at(tmp_path: Path) -> None:
    """Also one that is added later: it has to be listed with what belongs in it."""
    write_marker(tmp_path, marker())
    content = json.loads((tmp_path / MARKER).read_text())
    for name in content["made"]:
        wrong = {**content, "made": {**content["made"], name: 0.5}}
        (tmp_path / MARKER).write_text(json.dumps(wrong))
        assert read_marker(tmp_path) is None, name


def store(path: Path, width: int, *input_ids: str) -> None:
    made = pair_of("W4-channel").pair
    allocation = Allocation(
        model="letters",
        fingerprint=made.fingerprint,
        group_size=None,
        quantizer="rtn",
        criterion="gap",
        widths=(3, 4),
        budget=4.0,
        method="knapsack",
        status="optimal",
        bound=1.0,
        layers=(
            AllocatedLayer(name=made.layers[0].name, shape=(16, 26), width=width, loss=(1.0, 0.0)),
        ),
        n_others=0,
        others_bits=0,
        input_ids=input_ids,
    )
    path.unlink(missing_ok=True)
    write_allocation(path, allocation)


def test_embeddings_are_of_what_the_files_hold_that_a_scheme_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = []
    for width, *input_ids in ((4, "x"), (4, "x"), (3, "x"), (4, "y")):
        store(Path("a.json"), width, *input_ids)
        found.append(whose("a.json"))
    assert found[0] == found[1]
    assert found[0] != found[2]
    assert found[0] != found[3]  # other queries are left out
    told = []
    for text in ("one\n", "one\n", "two\n"):
        Path("texts.txt").write_text(text)
        told.append(whose("W4-channel-gptq+calib=texts.txt"))
    assert told[0] == told[1]
    assert told[0] != told[2]
