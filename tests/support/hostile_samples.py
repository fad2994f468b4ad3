"""Files as somebody hostile would write them: wrong values in the right places."""

import copy
import json
import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from quantdrift.base.records import file_digest, with_checksum

_RAW = ("[" * 100_000 + "]" * 100_000, "7" * 5_000, "1e999", '{"a": 1, "a": 2}')
"""What Python's own writer never gives."""
JUNK: Sequence[Any] = (
    *(None, True, False, 0, 1, -1, 7, 0.5, -0.0, 1e308, -1e308, 1e-320, 2**31, 2**63, -(2**63), 2**70),
    *(10**400, "", "x", "1", "0", "nan", "inf", "1e999", "9" * 5_000, "\x1b[31m", "a\nb", "\ud800", "\u202e"),
    *([], {}, [None], [[]], [{}], {"": None}, {"a": {}}, ["x", 1], [1.5, "y", None], "e" * 3_000),
    *(float("nan"), float("inf"), float("-inf")),
    *({"value": None}, {"name": []}, {"name": "x", "fingerprint": {}}, [0, 1, 1, 0], [[0, 1], [1, 0]]),
)


def places(whole: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values, at any depth."""
    keys = whole.keys() if isinstance(whole, dict) else range(len(whole)) if isinstance(whole, list) else ()
    return [at, *(place for key in keys for place in places(whole[key], (*at, key)))]


def holder_of(whole: Any, above: Sequence[Any]) -> Any:
    """Return the value at a path."""
    for key in above:
        whole = whole[key]
    return whole


def junk(rng: random.Random) -> Any:
    """A value that nobody expects."""
    return copy.deepcopy(rng.choice(JUNK))


def mutate_json(rng: random.Random, whole: Any) -> Any:
    """A copy with one to three values replaced, removed, doubled or moved to another place."""
    whole = json.loads(json.dumps(whole))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not (paths := places(whole)[1:]):
            return junk(rng)
        *above, last = rng.choice(paths)
        holder = holder_of(whole, above)
        match rng.randrange(8):
            case 0:
                del holder[last]
            case 1 if isinstance(holder, list):
                holder.insert(last, holder[last])
            case 2:
                holder[last] = json.loads(json.dumps(holder_of(whole, rng.choice(paths))))
            case 3 if isinstance(holder, dict):
                holder[rng.choice(("", "x", "name", "value", "\x1b]0;x\x07"))] = junk(rng)
            case _:
                holder[last] = junk(rng)
    return whole


def text_of(rng: random.Random, content: Any) -> str:
    """Write JSON, now and then with what Python's own writer never gives."""
    paths = places(content)[1:]
    if rng.random() < 0.9 or not paths:
        return json.dumps(content)
    *above, last = rng.choice(paths)
    holder_of(content, above)[last] = "@RAW@"
    return json.dumps(content).replace('"@RAW@"', rng.choice(_RAW), 1)


def new_checksum(content: Any) -> Any:
    """With the digest that fits, where it can have one."""
    try:
        return with_checksum(content)
    except (ValueError, TypeError, AttributeError):
        return content


def write_hostile_json(rng: random.Random, path: Path, content: Any, *, seal: bool) -> None:
    """Write a mutated copy, with a new checksum where the file has one."""
    changed = mutate_json(rng, content)
    text = json.dumps(new_checksum(changed)) if seal else text_of(rng, changed)
    path.write_text(text, encoding="utf-8")


def mutate_lines(rng: random.Random, text: str, words: Sequence[str]) -> str:
    """Lines of words with one word or line replaced, removed or doubled."""
    lines = text.splitlines()
    for _ in range(rng.choice((1, 1, 2))):
        number = rng.randrange(len(lines))
        tab = "\t" if "\t" in lines[number] else " "
        columns = lines[number].split(tab)
        at = rng.randrange(len(columns))
        match rng.randrange(6):
            case 0:
                del columns[at]
            case 1:
                columns.insert(at, columns[at])
            case 2:
                lines.insert(number, lines[number])
            case _:
                columns[at] = rng.choice(words)
        lines[number] = tab.join(columns)
    return rng.choice(("\n", "\n", "\n", "\r\n", "\r")).join(lines) + "\n"


def mutate_table(rng: random.Random, path: Path) -> None:
    """Replace a Parquet file by one with another value, type, length or column in it."""
    table = pq.read_table(path)
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(table.column_names)
        number = table.column_names.index(name)
        values = table[name].to_pylist()
        row = rng.randrange(max(len(values), 1))
        match rng.randrange(8):
            case 0:
                table = table.drop_columns([name])
                continue
            case 1:
                table = table.slice(0, rng.randrange(table.num_rows + 1))
                continue
            case 2:
                table = table.replace_schema_metadata({**(table.schema.metadata or {}), b"quantdrift_deltas": b"\xff"})
                continue
            case 3:
                table = table.set_column(number, name, table[rng.choice(table.column_names)])
                continue
            case 4 if isinstance(values[0], list):
                values[row] = rng.choice([None, [], values[row] * 2, values[row][:-1], [None]])
            case 5:
                with suppress(pa.ArrowException):
                    kind = rng.choice([pa.string(), pa.int32(), pa.float64(), pa.large_string()])
                    table = table.set_column(number, name, pa.array(map(str, values)).cast(kind))
                continue
            case _:
                odd = rng.choice([None, float("nan"), float("inf"), -1, 0, 2**40, "", "x", values[0]])
                if isinstance(values[row], list) and values[row]:
                    values[row] = [*values[row]]
                    values[row][rng.randrange(len(values[row]))] = odd
                else:
                    values[row] = odd
        try:
            table = table.set_column(number, name, pa.array(values, table.schema.field(name).type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
    pq.write_table(table, path)


def adopt_evidence(folder: Path) -> None:
    """Let run.json say that the evidence beside it is its own."""
    content = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    content["files"]["evidence.parquet"] = file_digest(folder / "evidence.parquet")
    (folder / "run.json").write_text(json.dumps(new_checksum(content)), encoding="utf-8")
