"""Executors for the shards of a corpus: this process, a pool of others on this machine, or Ray's actors on many.

Every worker has one shard at a time, and hands over what it found before it gets the next: a worker that is killed does
at most one shard again.
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
"""Workers in a row that may die without having finished anything."""

Score = Callable[[Any], bytes]
Make = Callable[..., Score]
Results = Iterator[tuple[Any, bytes]]
"""Shards with what is kept of each, as they are finished; `Workers` of quantdrift.parts says what the others are."""


class Worker:
    """Scores shards one after the other; what it needs comes with each, so that one that was started anew has it."""

    _score: Score | None = None

    def score(self, make: Make, shard: Any) -> tuple[Any, bytes]:
        """Score a shard, and give it back with what is kept of it."""
        try:
            self._score = self._score or make()
            return shard, self._score(shard)
        except QuantDriftError as error:  # not every one of them can be sent
            raise RunError(str(error)) from None


# --- processes on this machine --------------------------------------------------------------------

_WORKER = Worker()
"""The worker of this process, which has one model."""


def _number() -> int:
    """Number of the process among all that were started here."""
    number = multiprocessing.current_process().name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _start() -> None:
    """Initialize a process of the pool, which ends when the one that started it does, and not by Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(ImportError):
        from tqdm import tqdm  # type: ignore[import-untyped]  # noqa: PLC0415 -- only where models are

        tqdm.set_lock(threading.RLock())  # its own, one between processes, is left behind when this one is ended
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is not the first process

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _score(job: Path, threads: int, shard: Any) -> tuple[Any, bytes]:
    def make() -> Score:
        return cast(Make, pickle.loads(job.read_bytes()))(number=_number(), threads=threads)

    return _WORKER.score(make, shard)


def in_processes(make: Make, shards: Sequence[Any], *, n: int, threads: int) -> Results:
    """Score every shard in one of n processes on this machine, each with so many threads."""
    todo, deaths, n = list(shards), 0, min(n, len(shards))
    while todo:
        # in a file that nobody else can read or write: at a pipe we would wait until a worker reads it
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
                        f"{DEATHS} times in a row a worker died before it had finished a shard, perhaps for want of "
                        "memory; take fewer --workers, or a smaller --batch-size"
                    ) from None
                note("a worker died; the shards that were being done are done again")


@contextmanager
def _pool(n: int) -> Iterator[ProcessPoolExecutor]:
    """Processes; where the block is left by an error they are ended in the middle of their shards."""
    pool = ProcessPoolExecutor(n, mp_context=multiprocessing.get_context("spawn"), initializer=_start)
    try:
        yield pool
    except BaseException:
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            with suppress(Exception):  # it may have ended
                process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


# --- Ray ------------------------------------------------------------------------------------------


def on_ray(make: Make, shards: Sequence[Any], *, n: int | None) -> Results:
    """Score every shard by one of n actors, each of which sees an accelerator that is its own."""
    with extras_named(needed_for="--engine ray"):
        ray: Any = import_module("ray")  # its types are in the way
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
            f"a worker of Ray died {DEATHS + 1} times at one shard: {str(error).strip().splitlines()[0]}"
        ) from error
    finally:
        if started:
            ray.shutdown()
