"""Every number of every file that is read has bounds: of all schemas, field by field."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

import quantdrift
from quantdrift.base.errors import QuantDriftError
from quantdrift.base.records import parse_json

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


HUGE = "9" * 30
"""More than 64 bits; a float that is no whole number has bounds of its own."""


@pytest.mark.parametrize("number", [HUGE, f"-{HUGE}", str(1 << 63), "9" * 5000])
def test_no_file_of_ours_has_whole_numbers_of_more_than_64_bits(number: str) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        parse_json(f'{{"settings": {{"k": {number}}}}}', strict=True)
    assert parse_json(str((1 << 63) - 1), strict=True) == (1 << 63) - 1
