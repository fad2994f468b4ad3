"""Bits that flip and files that are cut short, of every kind that is stored: noticed, or they change nothing."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.processes import FULL, RUN, Forks, essence, files_in, write_study
from quantdrift.base.cache import CHECKSUM
from quantdrift.base.records import bytes_digest
from quantdrift.study.folder import open_study

N_PLACES, N_ROUNDS = (200, 12) if FULL else (6, 1)


def damaged(content: bytes, n: int, seed: int) -> Iterator[bytes]:
    """A file with one flipped bit, or cut short, by turns; anywhere, and at both ends."""
    draws = random.Random(seed)
    yield from (b"", content[:-1], content[: len(content) // 2])
    for number in range(n):
        at = number if number < 8 else len(content) - number + 7 if number < 16 else draws.randrange(len(content))
        at = min(max(at, 0), len(content) - 1)
        if number % 8 == 7:
            yield content[:at]
        else:
            yield content[:at] + bytes([content[at] ^ 1 << draws.randrange(8)]) + content[at + 1 :]


@pytest.mark.slow
def test_a_cell_that_is_damaged_is_not_done(tmp_path: Path, undisturbed) -> None:
    shutil.copytree(undisturbed.place / "out", tmp_path / "out")
    folder = open_study(tmp_path / "out")
    of_name = {cell.name: cell for cell in folder.cells}
    kinds = {path.name: path for path in sorted((tmp_path / "out" / "cells").rglob("*")) if path.is_file()}
    assert set(kinds) == {"run.json", "evidence.parquet", "probe.npz"}
    for name, path in kinds.items():
        whole, cell = path.read_bytes(), of_name[path.parent.name]
        for content in damaged(whole, N_PLACES, seed=len(name)):
            path.write_bytes(content)
            if folder.state(cell) == "done":  # a space for a line end, say
                assert essence(tmp_path / "out") == undisturbed.cells
        path.write_bytes(whole)
        assert folder.state(cell) == "done"


def with_checksum(path: Path) -> bool:
    content = path.read_bytes()
    return content[-CHECKSUM:].split()[-1] == bytes_digest(content[:-CHECKSUM]).encode()


@pytest.mark.very_slow
def test_what_is_damaged_is_made_again(tmp_path: Path, root: Path, fork: Forks, undisturbed) -> None:
    for number in range(N_ROUNDS):
        place = tmp_path / str(number)
        shutil.copytree(undisturbed.place, place)
        write_study(place, root)
        draws = random.Random(number)
        for path in sorted(place.glob("cache/**/*.np?")) + sorted(place.glob("cache/**/*.safetensors")):
            content = path.read_bytes()
            path.write_bytes(draws.choice(list(damaged(content, 24, seed=draws.randrange(1000)))))
        for path in [place / "out" / "study.json", *place.glob("out/failed/*"), *place.glob("out/.locks/*")]:
            content = path.read_bytes() or b"lock"
            path.write_bytes(draws.choice(list(damaged(content, 24, seed=draws.randrange(1000)))))
        for cell in (place / "out" / "cells").iterdir():  # so that each is measured again, from what is kept
            path = draws.choice(sorted(cell.iterdir()))
            content = path.read_bytes()
            path.write_bytes(draws.choice([content[: len(content) // 2], b"", content[:90] + b"\0" + content[91:]]))
        for words in (("status", "out"), ("results", "out")):
            code, printed = fork.run("study", *words, cwd=place)
            assert code in {0, 2}, printed
            assert "QUANTDRIFT_DEBUG" not in printed
        code, printed = fork.run(*RUN, cwd=place)
        assert code == 1, printed
        assert "QUANTDRIFT_DEBUG" not in printed
        assert essence(place / "out") == undisturbed.cells
        assert files_in(place / "out", place / "cache") == undisturbed.files
        for path in [*place.glob("cache/**/*.np?"), *place.glob("cache/**/*.safetensors")]:
            assert with_checksum(path), path
        assert fork.run("study", "status", "out", cwd=place)[0] == 0
