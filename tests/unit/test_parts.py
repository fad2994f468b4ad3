"""The contract with other packages: one module that loads little, and a scheme that stands on nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

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
    assert len(parts.__all__) == 87


def test_a_name_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match=r"'Stages'.*Stage"):
        _ = parts.Stages


def test_what_a_part_declares_loads_no_torch() -> None:
    asked = "from quantdrift.parts import EncoderKind, Format, Option, Quantizer, Scheme, Stage, metric"
    succeeds(f"{asked}\nimport sys\nassert 'torch' not in sys.modules")


def test_the_guide_asks_for_nothing_else() -> None:
    asked = set(re.findall(r"^\s*(?:from|import) (quantdrift[.\w]*)", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert asked <= PUBLIC, asked - PUBLIC


# --- a scheme is a value -----------------------------------------------------------------------------


POINTS = """[quantdrift.stages]
typed = typed:STAGE
[quantdrift.quantizers]
typed = typed:QUANTIZER
"""
TYPED = """
from quantdrift.kinds.quantizer import Quantizer
from quantdrift.scheme import Scheme
from quantdrift.spec.grammar import parse_scheme
from quantdrift.kinds.stage import Option, Stage


def check(scheme: Scheme) -> str | None:
    return None if scheme == parse_scheme(str(scheme)) else "no round trip"


STAGE = Stage(what="typed", kind="model", work="typed:Work", options={"typed": Option(pattern="[0-9]+")}, check=check)
QUANTIZER = Quantizer(title="Typed", make="typed:check")
"""
ASKED = """
from quantdrift.base.registry import REGISTRIES
from quantdrift.spec.grammar import parse_scheme, stages_of
scheme = parse_scheme("W4-typed+typed=2")
assert (str(scheme), stages_of(scheme)) == ("W4-g128-typed+typed=2", ("weights", "typed"))
assert REGISTRIES["quantdrift.stages"]["typed"].check(scheme) is None
assert not any(registry.broken for registry in REGISTRIES.values())
"""


@pytest.mark.parametrize("first", ["", "import typed", "from quantdrift.kinds.stage import STAGES\nSTAGES['typed']"])
def test_a_typed_part_of_another_package_works_whatever_is_imported_first(tmp_path: Path, first: str) -> None:
    info = tmp_path / "typed-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: typed\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    (tmp_path / "typed.py").write_text(TYPED)
    succeeds(f"{first}\n{ASKED}", tmp_path)


def test_an_import_of_the_grammar_reads_no_registry() -> None:
    read = "[group for group, registry in REGISTRIES.items() if '_entries' in vars(registry)]"
    succeeds(f"import quantdrift.spec.grammar\nfrom quantdrift.base.registry import REGISTRIES\nassert not {read}")


@pytest.mark.parametrize("values", ["weight_bits=9", "weight_bits=3.5", "weight_bits=4, quantizer='nf5'"])
def test_an_impossible_scheme_is_refused_by_the_first_name_that_a_program_takes(values: str) -> None:
    refused = f"try: quantdrift.Scheme({values})\nexcept quantdrift.QuantDriftError: pass\nelse: raise SystemExit(3)"
    succeeds(f"import quantdrift\n{refused}")


def succeeds(program: str, *first: Path) -> None:
    path = os.pathsep.join(map(str, [*first, *sys.path]))
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, check=True)
