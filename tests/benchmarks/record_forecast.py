"""Measure what commands take, beside the rate of the machine at that time: the truth that forecasts are tested by.

    python tests/benchmarks/record_forecast.py tests/unit/asking/recorded.json COMMAND...

A command is one argument, such as "run minilm@W4 --data FOLDER"; it replaces an earlier one in the file. Seconds are of
the process (CPU, all its threads), and so is the rate, which is measured before and after: on a busy machine their
ratio says more than a clock. The first command loads the libraries, and is not recorded; so loading them is not in any.
"""

import json
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from quantdrift.__main__ import main
from quantdrift.asking import forecast, rate
from quantdrift.cli import studying
from quantdrift.study import forecast as of_study


def as_json(made: forecast.Forecast) -> dict[str, Any]:
    """What decides a forecast beside the rate."""
    fields = asdict(replace(made, loaded=True))
    scheme = None if made.scheme is None else str(made.scheme)
    left_out = {"name", "rate", "more", "download"}
    return {**{name: value for name, value in fields.items() if name not in left_out}, "scheme": scheme}


def recorded(command: str) -> dict[str, Any]:
    """Run a command in this process; its forecasts, the rates before and after, and its seconds."""
    made, start = list[forecast.Forecast](), dict[str, float]()
    original, cells = forecast.forecast, studying.forecasts

    def probed(shape: Any, **_: Any) -> rate.Rate:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "perf_counter", time.process_time)
            return rate.measured_rate(shape, device="cpu", dtype="float32")

    def noted(*args: Any, **how: Any) -> forecast.Forecast:
        made.append(original(*args, **{**how, "quick": False}))
        start.update(cpu=time.process_time(), wall=time.perf_counter())
        return made[-1]

    def noted_cells(*args: Any, **how: Any) -> Iterator[Any]:
        told = [*cells(*args, **how)]
        made[:] = [each for _, each in told if isinstance(each, forecast.Forecast)]
        yield from told

    changes = (forecast, "forecast", noted), (of_study, "forecast", noted), (studying, "forecasts", noted_cells)
    before = [(module, name, getattr(module, name)) for module, name, _ in (*changes, (forecast, "rate_of", probed))]
    for module, name, value in (*changes, (forecast, "rate_of", probed)):
        setattr(module, name, value)
    sys.argv = ["quantdrift", *shlex.split(command)]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        for module, name, value in before:
            setattr(module, name, value)
    taken = {"cpu": time.process_time() - start["cpu"], "wall": time.perf_counter() - start["wall"]}
    rates = [made[0].rate.operations, probed(made[0].shape).operations]
    return {**{name: round(value, 2) for name, value in taken.items()}, "rates": rates, "of": list(map(as_json, made))}


if __name__ == "__main__":
    place, (warm, *commands) = Path(sys.argv[1]), sys.argv[2:]
    recorded(warm)
    for each in commands:
        runs = json.loads(place.read_text()) if place.exists() else {}
        runs[each] = recorded(each)
        print(each, {name: runs[each][name] for name in ("cpu", "wall", "rates")}, file=sys.stderr, flush=True)
        place.write_text(json.dumps(runs, indent=1) + "\n")
