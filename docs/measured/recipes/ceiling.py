"""How far tuning could go: `python ceiling.py DATA WORDS run SPEC ...` is quantdrift, tuned on what it is judged on.

Queries and documents of DATA, a folder or a task, so many words of each, take the place of sentences and openings of
the calibration sample; none is held out. An oracle, not a candidate.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from quantdrift.builtin.tuned import work as stage
from quantdrift.builtin.tuned.problem import DOCUMENTS, Batch, Problem, Side
from quantdrift.cli import main
from quantdrift.data.labelled import load_task, read_folder, searched

name, words, *command = sys.argv[1:]
folder = Path(name).is_dir()
data = searched(read_folder(Path(name)) if folder else load_task(name))
texts = [[" ".join(str(text).split()[: int(words)]) for text in side] for side in (data.queries, data.documents)]


def batch(rng: np.random.Generator) -> Batch:
    """Draw a step."""
    return tuple(rng.permutation(len(side))[:DOCUMENTS] for side in texts)


def problem(*_: Any, **__: Any) -> Problem:
    """All texts, in batches, and some of them to look at."""
    sides = tuple(Side(role=role, items=side) for role, side in zip(("query", "document"), texts, strict=True))
    looks = tuple(batch(np.random.default_rng([1, look])) for look in range(3))
    return Problem(sides=sides, batch=batch, held_out=looks, what="of the evaluated texts", unit=True)


stage.problem_of, stage._VERSION = problem, -int(words)
sys.argv[1:] = [*command, "--data" if folder else "--task", name]
main()
