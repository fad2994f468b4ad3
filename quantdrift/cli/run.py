"""`quantdrift run`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quantdrift.cli import Interrupted
from quantdrift.cli.places import default_place, earlier_run, tell_replaced
from quantdrift.cli.tables import print_run
from quantdrift.datasets.retrieval import RetrievalDataset, read_beir_folder
from quantdrift.datasets.tasks import load_task
from quantdrift.errors import QuantDriftError
from quantdrift.measurement.embeddings import EmbeddingStore, default_store
from quantdrift.measurement.job import run_spec
from quantdrift.measurement.retrieval import Settings
from quantdrift.measurement.versus_job import run_versus
from quantdrift.progress import Silent, Terminal
from quantdrift.versus import Versus, parse_pair

__all__ = ["KEPT", "RunOptions", "dataset_of", "run_command"]

KEPT = (
    "; embeddings and layers that were finished are kept, and the same command goes on from there"
)
"""What is said after Ctrl-C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of `quantdrift run`, as typed by the user."""

    spec: str
    data: Path | None
    task: str | None
    split: str
    out: Path | None
    k: int
    batch_size: int
    noise_floor: bool
    device: str | None
    revision: str | None
    seed: int
    cache: bool
    json_output: bool
    quiet: bool


def run_command(options: RunOptions) -> None:
    """Measure, write the run folder, print the table or the record.

    Raises:
        QuantDriftError: anything wrong with spec, data, model or disk.
    """
    spec = parse_pair(options.spec)
    measure = partial(run_versus, spec) if isinstance(spec, Versus) else partial(run_spec, spec)
    dataset = dataset_of(options)
    out = options.out or default_place(spec, dataset)
    earlier = earlier_run(out)
    try:
        run = measure(
            dataset,
            out=out,
            settings=Settings(
                k=options.k,
                batch_size=options.batch_size,
                noise_floor=options.noise_floor,
                seed=options.seed,
            ),
            store=default_store() if options.cache else EmbeddingStore(None),
            progress=Silent() if options.quiet else Terminal(),
            device=options.device,
            revision=options.revision,
        )
    except KeyboardInterrupt:
        raise Interrupted("no run was written" + (KEPT if options.cache else "")) from None
    tell_replaced(earlier)
    if options.json_output:
        print(json.dumps({**run.record, "path": str(run.path)}, indent=2, ensure_ascii=False))
    else:
        print_run(run)


def dataset_of(options: RunOptions) -> RetrievalDataset:
    """The folder or the task that the options name.

    Raises:
        QuantDriftError: neither or both are given, or it cannot be read.
    """
    if (options.data is None) == (options.task is None):
        raise QuantDriftError(
            "expected either --data FOLDER (BEIR layout) or --task NAME (quantdrift list tasks); "
            + ("got both" if options.data else "got neither")
        )
    if options.data is not None:
        return read_beir_folder(options.data, options.split)
    assert options.task is not None  # one of the two is given
    return load_task(options.task)
