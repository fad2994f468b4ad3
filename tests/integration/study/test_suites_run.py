"""The offline variants of the text suites, run on a tiny model and a tiny corpus: each gives the tables it is for."""

from pathlib import Path

import pytest

from quantdrift.study.suites import load_suite
from support.tiny_command_line import Run, corpora, one_thread, place, quantdrift

__all__ = ["corpora", "one_thread", "place", "quantdrift"]

NEEDS_MORE = {"arch", "regime", "law", "sephist", "certificate_tau", "gold", "harm"}
"""Several models, more inputs, or relevance labels, which are not here."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text", "query", "granularity", "activations"])
def test_a_suite_gives_its_tables(name: str, quantdrift: Run) -> None:
    quantdrift("study", "run", "--suite", name, "--offline", "--models", "TINY", "--data", "ROOT/data")
    folder = Path(f"quantdrift-runs/{name}-offline")
    quantdrift("tables", str(folder), "-o", "tex", quiet=False)
    made = {file.stem for file in Path("tex/tables").glob("*.tex")}
    assert {*load_suite(name).shows} - NEEDS_MORE <= made
