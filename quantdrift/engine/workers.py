"""Who works through the shards of a corpus: this process, others on this machine, or Ray's on many.

Every worker has one shard at a time, and hands over what it found before it gets the next: whatever is killed, a worker
does at most one shard again.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from quantdrift.base.display import note
from quantdrift.base.errors import MissingExtraError, QuantDriftError, RunError, UnsupportedError

ENGINES = ("local", "ray")
DEATHS = 3
"""Workers in a row that may die without having finished anything."""


class Scorer(Protocol):
    """Turns shards into what is kept of them; loads a model when it is made."""

    def score(self, shard: Any) -> bytes:
        """What is kept of a shard."""
        ...


Make = Callable[[int], Scorer]
"""Makes the scorer of a worker by its number; has to be picklable."""
Found = Iterator[tuple[Any, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """How many work, and where.

    Attributes:
        engine: "local", processes on this machine, or "ray".
        n: how many; None is one locally, and with Ray one for every accelerator, or else every core.
    """

    engine: str = "local"
    n: int | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UnsupportedError(f"--engine {self.engine} is not known; expected {' or '.join(ENGINES)}")

    def run(self, make: Make, shards: Sequence[Any], here: Callable[[], Scorer]) -> Found:
        """What is kept of every shard, as they are finished; `here` is the scorer of this process."""
        if not shards:
            return iter(())
        if self.engine == "ray":
            return _on_ray(make, shards, self.n)
        if (self.n or 1) == 1:
            scorer = here()
            return ((shard, scorer.score(shard)) for shard in shards)
        return _in_processes(make, shards, min(self.n or 1, len(shards)))


def threads_of(n_workers: int) -> int:
    """Threads of torch for each of the workers on one machine."""
    return max(1, (os.cpu_count() or 1) // n_workers)


# --- processes on this machine --------------------------------------------------------------------

_own: Scorer | None = None


def _start() -> None:
    """Of a process that works: it ends when the one that started it does."""
    with suppress(ImportError):
        from tqdm import tqdm  # type: ignore[import-untyped]  # noqa: PLC0415 -- only where models are

        tqdm.set_lock(threading.RLock())  # its own, one between processes, is left behind when this one is ended
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is not the first process

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _score(told: Path, shard: Any) -> bytes | str:
    """What is kept of a shard, or what was wrong; not every error can be sent."""
    global _own  # noqa: PLW0603 -- a process has one model
    try:
        if _own is None:
            make: Make = pickle.loads(told.read_bytes())
            _, number = multiprocessing.current_process().name.rsplit("-", 1)
            _own = make(int(number))
        return _own.score(shard)
    except QuantDriftError as error:
        return str(error)


def _in_processes(make: Make, shards: Sequence[Any], n: int) -> Found:
    todo, deaths = deque(shards), 0
    while todo:
        under_way: dict[Future[bytes | str], Any] = {}
        with _written(make) as told, _pool(n) as pool:
            try:
                while todo or under_way:
                    while todo and len(under_way) < n:
                        shard = todo.popleft()
                        with _deaf():  # a process that this starts is so from its first moment
                            under_way[pool.submit(_score, told, shard)] = shard
                    for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                        found = future.result()
                        yield under_way.pop(future), _checked(found)
                        deaths = 0
            except BrokenProcessPool:
                todo.extendleft(under_way.values())
                deaths += 1
                if deaths == DEATHS:
                    raise RunError(
                        f"{DEATHS} times in a row a worker died before it had finished a shard, perhaps for want of "
                        "memory; take fewer --workers, or a smaller --batch-size"
                    ) from None
                note(f"a worker died; {len(under_way)} shards are done again")


@contextmanager
def _written(make: Make) -> Iterator[Path]:
    """What to do, in a file that nobody else can read or write; at a pipe we would wait until a worker reads it."""
    with TemporaryDirectory(prefix="quantdrift-workers-") as folder:
        path = Path(folder) / "job"
        path.write_bytes(pickle.dumps(make))
        yield path


@contextmanager
def _pool(n: int) -> Iterator[ProcessPoolExecutor]:
    """Processes; where the block is left by an error they are ended in the middle of their shards."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(n, mp_context=context, initializer=_start)
    try:
        yield pool
    except BaseException:
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            with suppress(Exception):  # it may have ended
                process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _deaf() -> Iterator[None]:
    """Inside, Ctrl-C is not heard; it is for the process that started the others."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _checked(found: bytes | str) -> bytes:
    if isinstance(found, str):
        raise RunError(found)
    return found


# --- Ray ------------------------------------------------------------------------------------------


class _Actor:
    """A worker of Ray; what it needs comes with every shard, so that one that was started anew has it too."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.own: Scorer | None = None

    def score(self, make: Make, shard: Any) -> bytes | str:
        try:
            self.own = self.own or make(self.number)
            return self.own.score(shard)
        except QuantDriftError as error:
            return str(error)


def _on_ray(make: Make, shards: Sequence[Any], n: int | None) -> Found:
    try:
        ray: Any = import_module("ray")  # optional, and its types are in the way
    except ImportError as error:
        raise MissingExtraError("ray", "ray", needed_for="--engine ray") from error
    started = not ray.is_initialized()
    if started:
        # the cluster that RAY_ADDRESS names, else one on this machine
        elsewhere = bool(os.environ.get("RAY_ADDRESS"))
        here = {} if elsewhere else {"num_cpus": max(n or 0, os.cpu_count() or 1), "include_dashboard": False}
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **here)
        except Exception as error:  # it has many kinds
            raise RunError(f"Ray cannot be reached or started: {str(error).strip().splitlines()[0]}") from error
    try:
        there = ray.cluster_resources()
        gpus = int(there.get("GPU", 0))
        n = min(len(shards), n or gpus or max(1, int(there.get("CPU", 1))))
        settings = {"num_cpus": 1, "num_gpus": 1 if gpus else 0, "max_restarts": DEATHS, "max_task_retries": DEATHS}
        told = ray.put(make)
        actor = ray.remote(_Actor).options(**settings)
        idle = [actor.remote(number) for number in range(n)]
        todo, under_way = deque(shards), dict[Any, tuple[Any, Any]]()
        while todo or under_way:
            while todo and idle:
                worker, shard = idle.pop(), todo.popleft()
                under_way[worker.score.remote(told, shard)] = worker, shard
            done, _ = ray.wait(list(under_way))
            worker, shard = under_way.pop(done[0])
            try:
                found = _checked(ray.get(done[0]))
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayError as error:
                raise RunError(
                    f"a worker of Ray died {DEATHS + 1} times at one shard: {str(error).strip().splitlines()[0]}"
                ) from error
            idle.append(worker)
            yield shard, found
    finally:
        if started:
            ray.shutdown()
