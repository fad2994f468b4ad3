"""Executors for the shards of a corpus: processes on this machine, or Ray's actors on many machines.

Every worker has one shard at a time and returns its result before it gets the next, so that a killed worker repeats at
most one shard.
"""

import logging
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from quantdrift.parts import QuantDriftError, RunError, extras_named, in_one_line, note

DEATHS = 3
"""Deaths of workers without a finished shard between them, after which the search is given up."""

Score = Callable[[Any], bytes]
Make = Callable[..., Score]
Results = Iterator[tuple[Any, bytes]]
"""Shards with their results, as they are finished; see `Workers` of quantdrift.parts."""


class Worker:
    """Scores shards one after the other; every call brings what a restarted worker needs."""

    _score: Score | None = None

    def score(self, make: Make, shard: Any) -> tuple[Any, bytes]:
        """Score a shard, and return it with its result."""
        try:
            self._score = self._score or make()
            return shard, self._score(shard)
        except QuantDriftError as error:  # some errors cannot be pickled
            raise RunError(str(error)) from None


# --- processes on this machine --------------------------------------------------------------------

_WORKER = Worker()
"""The worker of this process."""


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


def _score(job: Path, threads: int, shard: Any) -> tuple[Any, bytes]:
    def make() -> Score:
        return cast(Make, pickle.loads(job.read_bytes()))(number=_number(), threads=threads)

    return _WORKER.score(make, shard)


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


# --- Ray ------------------------------------------------------------------------------------------


def on_ray(make: Make, shards: Sequence[Any], *, n: int | None) -> Results:
    """Score the shards with n actors, each with an accelerator of its own."""
    with extras_named(needed_for="--engine ray"):
        ray: Any = import_module("ray")  # its types get in the way
    started = not ray.is_initialized()
    if started:
        # the cluster that RAY_ADDRESS names, else one on this machine
        local = {"num_cpus": max(n or 0, os.cpu_count() or 1), "include_dashboard": False}
        where = {} if os.environ.get("RAY_ADDRESS") else local
        with in_one_line("Ray cannot be reached or started", kind=RunError):
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **where)
    try:
        there = ray.cluster_resources()
        gpus = int(there.get("GPU", 0))
        n = min(len(shards), n or gpus or max(1, int(there.get("CPU", 1))))
        settings = {"num_cpus": 1, "num_gpus": 1 if gpus else 0, "max_restarts": DEATHS, "max_task_retries": DEATHS}
        job, actor = ray.put(make), ray.remote(Worker).options(**settings)
        pool = import_module("ray.util").ActorPool([actor.remote() for _ in range(n)])
        yield from pool.map_unordered(lambda worker, shard: worker.score.remote(job, shard), shards)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise RunError(
            f"a worker of Ray died {DEATHS + 1} times on one shard: {str(error).strip().splitlines()[0]}"
        ) from error
    finally:
        if started:
            ray.shutdown()
