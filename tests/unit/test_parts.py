"""The contract with other packages: one module, all of whose names are there, and nothing else is asked for."""

import re
import subprocess
import sys

import pytest

from quantdrift import parts
from support.places import ROOT

PAGE = ROOT / "docs" / "guides" / "extending.md"
PUBLIC = {"quantdrift", "quantdrift.parts"}


@pytest.mark.parametrize("name", sorted(parts.__all__))
def test_every_name_that_type_checkers_are_told_is_there(name: str) -> None:
    assert getattr(parts, name) is not None


def test_every_name_is_told_to_type_checkers_as_public() -> None:
    source = (ROOT / "quantdrift" / "parts.py").read_text(encoding="utf-8")
    assert re.findall(r"(\w+) as (\w+)", source) == [(name, name) for name in parts.__all__]
    assert len(parts.__all__) == 90


def test_a_name_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match=r"'Stages'.*Stage"):
        _ = parts.Stages


def test_what_a_part_declares_loads_no_torch() -> None:
    asked = "from quantdrift.parts import EncoderKind, Format, Option, Quantizer, Scheme, Stage, metric; import sys; "
    assert not subprocess.run(
        [sys.executable, "-c", f"{asked}sys.exit('torch' in sys.modules)"], check=False
    ).returncode


def test_the_guide_asks_for_nothing_else() -> None:
    asked = set(re.findall(r"^\s*(?:from|import) (quantdrift[.\w]*)", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert asked <= PUBLIC, asked - PUBLIC
