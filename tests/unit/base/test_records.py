"""Files are there whole or not at all, and JSON from outside ends in bounded values or a ValueError."""

import errno
import importlib
import json
import os
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

import quantdrift
from quantdrift.base import records
from quantdrift.base.errors import QuantDriftError, RunError
from quantdrift.base.records import MAX_DEPTH


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_two_that_write_at_once_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    with records.whole_file(path) as first:
        with records.whole_file(path) as other:
            other.write_text("other")
            first.write_text("one")
        assert path.read_text() == "other"
    assert (path.read_text(), names(tmp_path)) == ("one", ["it.json"])


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("earlier", [None, "earlier"])
def test_after_an_error_the_place_is_as_it_was(tmp_path: Path, error: type[BaseException], earlier: str | None) -> None:
    path = tmp_path / "it.json"
    if earlier is not None:
        path.write_text(earlier)

    def write() -> None:
        with records.whole_file(path) as partial:
            partial.write_text("half")
            raise error

    with pytest.raises(error):
        write()
    assert names(tmp_path) == ([] if earlier is None else ["it.json"])
    assert earlier is None or path.read_text() == earlier


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    path = tmp_path / "it.json"
    path.write_text("earlier")

    def full(self: Path, text: str, **_: Any) -> None:
        self.write_bytes(text[:4].encode())
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RunError, match=r"the study .*no space left"):
        records.write_text(path, "later text", what="the study")
    assert (path.read_bytes(), names(tmp_path)) == (b"earlier", ["it.json"])


DEEP = MAX_DEPTH + 2


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "[" * DEEP + "]" * DEEP, "9" * 5_000, "{", b"\xff", ""], ids=range(7)
)
def test_json_from_outside_ends_in_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        records.parse_json(text)


@pytest.mark.parametrize(
    "text",
    ["[1e999]", "[-1e999]", "[NaN]", "[Infinity]", '{"b": {"a": 1, "a": 2}}', f'{{"k": {1 << 63}}}', f"[-{9**40}]"],
)
def test_strict_refuses_numbers_that_are_none_or_too_large_and_a_key_that_stands_twice(text: str) -> None:
    records.parse_json(text)
    with pytest.raises(ValueError, match=r"finite|'a'|64 bits"):
        records.parse_json(text, strict=True)
    assert records.parse_json(str((1 << 63) - 1), strict=True) == (1 << 63) - 1


def test_a_pipe_a_device_and_a_large_file_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_text("[" + "1," * 50 + "1]")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ValueError, match="pipe or a device"):
            records.read_json(path)
    with pytest.raises(ValueError, match="larger than 10 bytes"):
        records.read_json(tmp_path / "large", limit=10)
    with pytest.raises(OSError, match="directory"):
        records.read_json(tmp_path)


def test_a_seal_holds_for_the_same_content_and_no_other() -> None:
    content = {"b": [1, 2.5, "é"], "a": {"x": None}, "threshold": 0.1 + 0.2}
    whole = records.with_checksum(content)
    records.check_checksum(json.loads(json.dumps(whole, indent=2, ensure_ascii=False)))
    assert (list(whole)[-1], records.with_checksum(whole)) == ("digest", whole)
    for other in (
        {**whole, "threshold": 0.3},
        {**whole, "new": 1},
        {k: v for k, v in whole.items() if k != "a"},
        {**whole, "digest": None},
    ):
        with pytest.raises(ValueError, match="digest"):
            records.check_checksum(other)


# --- bounds of all schemas, field by field -----------------------------------------------------------


OURS = ("quantdrift", "quantdrift_pytest")


_EMBEDDING = "properties.embedding.anyOf.0.items.anyOf.0"
OPEN = {
    "trust.check.StabilityCheck.properties.threshold",  # infinite where all or nothing is accepted
    f"models.server_client._Entry.{_EMBEDDING}",  # NaN is told with the input that it is of
    f"models.server_client._Embeddings.$defs._Entry.{_EMBEDDING}",
}
"""Numbers that are looked at after they are read."""


def schemas() -> dict[str, type]:
    """What pydantic checks: all models of ours by name."""
    for module in pkgutil.walk_packages(quantdrift.__path__, "quantdrift."):
        try:
            importlib.import_module(module.name)
        except (ImportError, QuantDriftError):  # of an extra that is not installed
            continue
    importlib.import_module("quantdrift_pytest.drift")
    models: list[type[BaseModel]] = [BaseModel]
    for model in models:
        models += [other for other in model.__subclasses__() if other not in models]
    ours = [model for model in models if model.__module__.split(".")[0] in OURS]
    return {f"{model.__module__}.{model.__qualname__}": model for model in ours}


def without_bounds(part: Any, place: str) -> Iterator[str]:
    """Places in a JSON schema where any number is taken, however large or below zero."""
    if isinstance(part, list):
        for number, inner in enumerate(part):
            yield from without_bounds(inner, f"{place}.{number}")
    elif isinstance(part, dict):
        low, high = ({name, f"exclusive{name.capitalize()}"} for name in ("minimum", "maximum"))
        is_number = part.get("type") in ("integer", "number") and not part.keys() & {"const", "enum"}
        if is_number and not (part.keys() & low and part.keys() & high):
            yield place
        for key, inner in part.items():
            if key not in ("default", "const", "enum"):
                yield from without_bounds(inner, f"{place}.{key}")


class Loose(GenerateJsonSchema):
    """JSON schemas that say nothing of what no file holds, such as functions of a rule."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}

    def json_or_python_schema(self, schema: Any) -> dict[str, Any]:
        """Of InstanceOf nothing: such values are made of text before pydantic sees them."""
        return {} if schema["python_schema"]["type"] == "is-instance" else super().json_or_python_schema(schema)


def test_every_number_of_every_schema_has_bounds() -> None:
    of = schemas()
    assert len(of) > 25
    open_ = [
        place
        for name, model in of.items()
        for place in without_bounds(TypeAdapter(model).json_schema(schema_generator=Loose), name)
    ]
    assert {place.removeprefix("quantdrift.") for place in open_} == OPEN
