"""Measure what commands take, beside the rate of the machine at that time: the truth that forecasts are tested by.

    python tests/benchmarks/record_forecast.py FILE.json COMMAND...

A command is one argument, such as "run minilm@W4 --data FOLDER"; its run replaces an earlier one in the file. Seconds
are of the process (CPU, all its threads), and so is the rate, which is measured before and after: on a busy machine
their ratio says more than a clock. The first command loads the libraries and is not recorded.
"""

import json
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quantdrift.__main__ import main
from quantdrift.asking import forecast, rate


def told(command: str, file: Path) -> dict[str, Any] | None:
    """Run a command in this process; the job that was forecast, its rate and its seconds."""
    jobs: list[dict[str, Any]] = []

    def probed() -> float:
        return rate.measured_rate(shape, device="cpu", dtype="float32", clock=time.process_time).operations

    def record(job: forecast.Job, name: str, rates: rate.Rate, **more: Any) -> forecast.Forecast:
        nonlocal shape
        shape = job.shape
        scheme = None if job.scheme is None else str(job.scheme)
        jobs.append({"name": name, "job": {**asdict(job), "scheme": scheme, "loaded": True}, "before": probed()})
        jobs[-1]["cpu"], jobs[-1]["wall"] = time.process_time(), time.perf_counter()
        return original(job, name, rates, **more)

    shape: Any = None
    original, forecast.told, forecast.LONG = forecast.told, record, 0.0
    sys.argv = ["quantdrift", *shlex.split(command)]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        forecast.told = original
    ends = {"cpu": time.process_time(), "wall": time.perf_counter()}
    first = jobs[0]
    taken = {key: round(value - first[key], 2) for key, value in ends.items()}
    both = [first.pop("before"), probed()]
    return {**first, "command": command, "jobs": [job["job"] for job in jobs], **taken, "rates": both}


if __name__ == "__main__":
    place, (warm, *commands) = Path(sys.argv[1]), sys.argv[2:]
    told(warm, place)
    for each in commands:
        recorded = told(each, place)
        print(each, recorded["cpu"], recorded["wall"], recorded["rates"], flush=True)
        runs = json.loads(place.read_text()) if place.exists() else {}
        place.write_text(json.dumps({**runs, each: recorded}, indent=1) + "\n")
