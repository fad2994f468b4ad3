"""Run the golden commands, and hold what they give against the files in `expected/`.

    python tests/golden/golden.py           # what differs, with exit code 1 if something does
    python tests/golden/golden.py --write   # after a change that is meant: write the files anew
    python tests/golden/golden.py NAME ...  # only these, with what they need made before

Figures are equal if they agree to a part in a thousand, those within a sentence too, or to their last decimal; what a
clock, a path or a version decides is left out. Words are held by the commands under `says` in commands.yaml.
"""

import contextlib
import io
import json
import math
import os
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
EXPECTED = HERE / "expected"
sys.path[:0] = [str(HERE), str(HERE.parent)]

import inputs  # noqa: E402 -- beside this file
import yaml  # noqa: E402 -- after the path
from harnesses import HARNESSES  # noqa: E402 -- likewise

COMMANDS, SAID, EVIDENCE = yaml.safe_load((HERE / "commands.yaml").read_text(encoding="utf-8")).values()
"""Name to command line; to those whose whole output is kept; and folders whose runs' evidence is held on to, too."""
LEFT_OUT = re.compile(
    r"times|versions?|software|quantdrift|cell|date|signature|seconds\w*|digest|path|\w*fingerprint|evaluation_time|"
    r"threads|layers_kept_from_before|measured_with|total_evaluation_time_seconds|\w*_digest|sha\w*|"
    r"reason|notes|warnings|findings|p_equivalent"
)
"""Keys whose values depend on the clock, the machine or the version, and sentences."""
RELATIVE, ABSOLUTE = 1e-3, 2e-4
ROUGH = {"run W4A8": (0.1, 0.06), "run hqq": (0.01, ABSOLUTE)}
"""Commands whose figures move with the last bits of a processor's products, and how near they agree, relative and
absolute, without intervals, counts and sentences that repeat them. Rounded activations make them steps of a grid;
HQQ's tau moves by 0.4 %."""
DECIMAL = re.compile(r"[-+]?\d+\.\d+(?:e[-+]\d+)?(?![.\d])")
"""A figure within a sentence; counts and versions are words."""
MISSING = "(nothing)"
WIDTH = 120


def run_all(folder: Path, only: Sequence[str] = ()) -> dict[str, Any]:
    """Run every command, and return the outcomes by name.

    Args:
        folder: to work in; empty.
        only: names of commands; all of them if empty.
    """
    inputs.write_all(folder)
    os.environ.update(QUANTDRIFT_CACHE=str(folder / "cache"), HF_HUB_OFFLINE="1", COLUMNS="1000", NO_COLOR="1")
    outcomes = {}
    with contextlib.chdir(folder):
        for name, line in {**COMMANDS, **SAID}.items():
            if not only or name in only:
                outcomes[name] = _command(line)
                print(f"{name}: exit {outcomes[name]['exit']}", file=sys.stderr)
        for place in EVIDENCE:
            for run in sorted(Path(place).rglob("evidence.parquet")):
                name = f"evidence {run.parent}"
                outcomes[name.replace(str(folder), "")] = _evidence(run)
        for name, evaluate in HARNESSES.items():
            if not only or name in only:
                with contextlib.redirect_stdout(io.StringIO()):
                    outcomes[name] = _plain(evaluate(), folder)
    return outcomes


def _command(line: str) -> dict[str, Any]:
    """Exit code and standard output of a command line, run in this process."""
    from quantdrift.cli import main  # noqa: PLC0415 -- the cache folder has to be set before
    from quantdrift_paper.__main__ import main as paper  # noqa: PLC0415 -- likewise

    words = shlex.split(line)
    quiet = ["--quiet"] if words[0] in _MEASURING and "results" not in words and "nowhere" not in line else []
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["quantdrift", *words, *quiet]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            (paper if words[0] in {"law", "contenders", "capture", "tables"} else main)()
        code: Any = 0
    except SystemExit as ended:
        code = ended.code or 0
    except Exception:  # it is part of what came out
        code = traceback.format_exc(limit=1)
    finally:
        sys.argv = before
    text = out.getvalue()
    value: dict[str, Any] = {"command": line, "exit": code}
    if code == 2:
        value["refused"] = _lines(err.getvalue())
    elif line in SAID.values():
        value["says"] = _lines(text)
    elif text.lstrip().startswith(("{", "[")):
        value["output"] = _plain(json.loads(text), Path.cwd())
    return value


def _lines(text: str) -> list[str]:
    """What is said, without rules, the width of columns, and what depends on versions."""
    lines = [" ".join(line.split()) for line in _plain(text, Path.cwd()).splitlines()]
    return [line for line in lines if line.strip("─━┏┓┗┛┡┩┳╇┻└┘┴├┤┼╪ ") and not line.startswith("signature:")]


_MEASURING = {"run", "study", "quantize", "allocate"}


def _plain(value: Any, folder: Path) -> Any:
    """A JSON value without what a clock, a path or a version decides."""
    if isinstance(value, dict):
        return {str(key): _plain(part, folder) for key, part in value.items() if not LEFT_OUT.fullmatch(str(key))}
    if isinstance(value, list | tuple):
        return [_plain(part, folder) for part in value]
    if isinstance(value, str):
        text = value.replace(str(folder), ".").replace(str(folder.resolve()), ".")
        return re.sub(r"\b[0-9a-f]{16,}\b|(?<=allocation-)[0-9a-f]{8}\b", "HEX", text)
    if hasattr(value, "to_json"):
        return _plain(value.to_json(), folder)
    if hasattr(value, "item"):
        value = value.item()
    return float(f"{value:.7g}") if isinstance(value, float) and math.isfinite(value) else value


def _evidence(path: Path) -> dict[str, Any]:
    """The first three ranks of every input, with their scores, and its scalars."""
    import pyarrow.parquet as pq  # noqa: PLC0415 -- beside the commands it is loaded anyway

    rows = pq.read_table(path).to_pylist()
    kept: dict[str, Any] = {"rows": len(rows), "columns": sorted(rows[0]), "inputs": {}}
    for row in rows:
        kept["inputs"][row["input_id"]] = {
            "flip": row["flip"],
            **{name: _short(row[name]) for name in ("gap", "epsilon", "separation", "S")},
            "reference": " ".join(row["reference_items"][:3]),
            "candidate": " ".join(row["candidate_items"][:3]),
            "scores": [_short(x) for x in row["candidate_items_candidate_scores"][:3]],
        }
    return kept


def _short(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) and math.isfinite(value) else value


def differences(
    expected: Any, actual: Any, place: str = "", *, rough: tuple[float, float] | None = None
) -> Iterator[str]:
    """Say where two values differ by more than noise, or by more than `rough`, without intervals and counts."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in expected.keys() | actual.keys():
            if key not in expected or key not in actual:
                yield f"{place}/{key}: only {'found' if key in actual else 'expected'}"
            elif not (rough and key in {"low", "high", "n", "sentence", "sentences"}):
                yield from differences(expected[key], actual[key], f"{place}/{key}", rough=rough)
    elif isinstance(expected, list) and isinstance(actual, list):
        for number, (first, second) in enumerate(zip_longest(expected, actual, fillvalue=MISSING)):
            yield from differences(first, second, f"{place}[{number}]", rough=rough)
    elif isinstance(expected, str) and isinstance(actual, str) and DECIMAL.split(expected) == DECIMAL.split(actual):
        for first, second in zip(DECIMAL.findall(expected), DECIMAL.findall(actual), strict=True):
            last = max(10.0 ** -len(x.partition("e")[0].partition(".")[2]) for x in (first, second))
            if not math.isclose(float(first), float(second), rel_tol=RELATIVE, abs_tol=max(ABSOLUTE, 1.01 * last)):
                yield f"{place}: expected {first}, found {second} in {actual[:200]!r}"
    elif isinstance(expected, float) or isinstance(actual, float):
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (expected, actual))
        relative, absolute = rough or (RELATIVE, ABSOLUTE)
        close = numbers and math.isclose(expected, actual, rel_tol=relative, abs_tol=absolute)
        if not (close or (numbers and math.isnan(expected) and math.isnan(actual))):
            yield f"{place}: expected {expected!r}, found {actual!r}"
    elif expected != actual:
        yield f"{place}: expected {str(expected)[:200]!r}, found {str(actual)[:200]!r}"


def file_of(name: str) -> Path:
    """Return the file of a command's outcome."""
    return EXPECTED / f"{re.sub(r'[^a-zA-Z0-9]+', '-', name).strip('-')}.json"


def _differences_of(name: str, value: Any) -> list[str]:
    """Say how the outcome of a command differs from the kept one."""
    expected = json.loads(file_of(name).read_text(encoding="utf-8")) if file_of(name).is_file() else {}
    return list(differences(expected, json.loads(json.dumps(value)), rough=ROUGH.get(name)))


def as_text(value: Any) -> str:
    """What is written of an outcome: JSON with a figure and its interval on one line."""
    return _written(value, 0) + "\n"


def _written(value: Any, depth: int, before: str = "") -> str:
    """A value behind its key: on one line if that is short, or with single values side by side."""
    line = before + json.dumps(value, ensure_ascii=False, sort_keys=True)
    if not value or not isinstance(value, dict | list) or depth + len(line) <= WIDTH:
        return line
    keyed = isinstance(value, dict)
    pairs = [(f"{json.dumps(key)}: ", value[key]) for key in sorted(value)] if keyed else [("", it) for it in value]
    parts = [f"{_written(part, depth + 1, key)}," for key, part in pairs]
    parts[-1] = parts[-1][:-1]
    single = [not ((isinstance(it, dict) and it) or "\n" in part) for part, (_, it) in zip(parts, pairs, strict=True)]
    if not keyed:  # a sentence has a line of its own
        single = [here and not (isinstance(it, str) and " " in it) for here, it in zip(single, value, strict=True)]
    lines = [parts[0]]
    for part, this, last in zip(parts[1:], single[1:], single, strict=False):
        if this and last and depth + 2 + len(lines[-1]) + len(part) <= WIDTH:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    start, end = "{}" if keyed else "[]"
    space = "\n" + " " * depth
    if all(single):
        return f"{before}{start}" + f"{space} ".join(lines) + end
    return f"{before}{start}" + "".join(f"{space} {line}" for line in lines) + space + end


def main(arguments: Sequence[str]) -> int:
    """The command line of this script."""
    write = "--write" in arguments
    names = [name for name in arguments if not name.startswith("--")]
    with tempfile.TemporaryDirectory() as folder:
        outcomes = run_all(Path(folder), names)
    if write:
        EXPECTED.mkdir(exist_ok=True)
        for name, value in outcomes.items():
            if _differences_of(name, value):
                file_of(name).write_text(as_text(value), encoding="utf-8")
        return 0
    bad = 0
    for name, value in outcomes.items():
        for line in _differences_of(name, value)[:12]:
            bad += 1
            print(f"{name}: {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
