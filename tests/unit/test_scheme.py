"""A scheme is a value that stands on nothing: who imports it, or the grammar, starts no registry."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
