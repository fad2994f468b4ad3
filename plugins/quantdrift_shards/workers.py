"""Scores the shards of a corpus in several processes on this machine.

Every process has one shard at a time and returns its result before it gets the next, so that a killed worker repeats at
most one shard.
"""

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from quantdrift.parts import QuantDriftError, RunError, note

DEATHS = 3
"""Deaths of workers without a finished shard between them, after which the search is given up."""

Score = Callable[[Any], bytes]
Make = Callable[..., Score]
Results = Iterator[tuple[Any, bytes]]
"""Shards with their results, as they are finished; see `Workers` of quantdrift.parts."""


def _number() -> int:
    """The number of this process among those that its parent started."""
    number = multiprocessing.current_process().name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _start() -> None:
    """Initialize a process of the pool, which ignores Ctrl-C and ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(ImportError):
        from tqdm import tqdm  # type: ignore[import-untyped]  # noqa: PLC0415 -- only where models are

        tqdm.set_lock(threading.RLock())  # its default lock between processes would leak when this process is killed
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a child process

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@cache
def _scorer(job: Path, threads: int) -> Score:
    """Load the models of this process, at its first shard."""
    return cast(Make, pickle.loads(job.read_bytes()))(number=_number(), threads=threads)


def _score(job: Path, threads: int, shard: Any) -> tuple[Any, bytes]:
    try:
        return shard, _scorer(job, threads)(shard)
    except QuantDriftError as error:  # some errors cannot be pickled
        raise RunError(str(error)) from None


def in_processes(make: Make, shards: Sequence[Any], *, n: int, threads: int) -> Results:
    """Score the shards in n processes on this machine, each with `threads` threads."""
    todo, deaths, n = list(shards), 0, min(n, len(shards))
    while todo:
        # in a private file: writing to a pipe would block until a worker reads it
        with TemporaryDirectory(prefix="quantdrift-workers-") as folder, _pool(n) as pool:
            job = Path(folder) / "job"
            job.write_bytes(pickle.dumps(make))
            try:
                for future in as_completed([pool.submit(_score, job, threads, shard) for shard in todo]):
                    shard, kept = future.result()
                    todo.remove(shard)
                    deaths = 0
                    yield shard, kept
            except BrokenProcessPool:
                deaths += 1
                if deaths == DEATHS:
                    raise RunError(
                        f"{DEATHS} workers in a row died before a shard was finished, perhaps for lack of memory; take "
                        "fewer --workers, or a smaller --batch-size"
                    ) from None
                note("a worker died; unfinished shards are scored again")


@contextmanager
def _pool(n: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes, which are killed if an error leaves the block."""
    pool = ProcessPoolExecutor(n, mp_context=multiprocessing.get_context("spawn"), initializer=_start)
    try:
        yield pool
    except BaseException:
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            with suppress(Exception):  # it may have ended already
                process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
