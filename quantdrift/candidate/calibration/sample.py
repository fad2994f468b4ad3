"""The calibration inputs of a quantizer: documents of the corpus, drawn by a seed, or texts of a file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import DataError
from quantdrift.data.retrieval import read_lines, read_records
from quantdrift.models.inputs import Encoder, Inputs, described
from quantdrift.models.store import key_of
from quantdrift.scheme import Scheme

DEFAULT_SIZE = 512
"""Documents, as in the paper."""
MOST_BATCHES = 64
"""Most batches, as each has its own thread while layers are made, beside the threads of torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Calibration inputs, ready to be run.

    Attributes:
        batches: functions that each run the model on one batch of inputs of similar length.
        key: JSON values that decide the inputs of the model; None if unknown.
        record: the entries of the sample in run.json.
        rows: positions of the inputs, if they are of a single kind.
        inputs: the inputs of each kind.
    """

    batches: list[Callable[[], object]]
    key: Mapping[str, Any] | None
    record: Mapping[str, Any]
    rows: NDArray[np.int64] | None = None
    inputs: tuple[Inputs, ...] = ()


def calibration_file(scheme: Scheme) -> Path | None:
    """Return the file that `+calib=` names; None if it gives a number or is missing."""
    given = scheme.option("calib")
    return None if given is None or given.isdecimal() else Path(given).expanduser()


def calibration_texts(scheme: Scheme) -> list[str] | None:
    """Read the texts of the file that `+calib=` names; None if it names none. Called before a model is loaded."""
    file = calibration_file(scheme)
    return None if file is None else read_texts(file)


def draw_sample(
    encoder: Encoder,
    kinds: Sequence[Inputs],
    scheme: Scheme,
    batch_size: int,
    *,
    groups: NDArray[np.int64] | None = None,
    source: str = "corpus",
) -> Sample:
    """Draw the calibration inputs of a scheme, the same number of each kind: documents, and queries for a second tower.

    `groups` divide the rows of a single kind; batches do not mix them.
    """
    samples = [_sample(encoder, side, scheme, batch_size, groups=groups, source=source) for side in kinds]
    if len(samples) == 1:
        return samples[0]
    keys = [sample.key for sample in samples]
    keyed = bool(keys) and None not in keys
    return Sample(
        batches=[batch for sample in samples for batch in sample.batches],
        key={"kinds": keys} if keyed else None,
        inputs=tuple(side for sample in samples for side in sample.inputs),
        record={
            **samples[0].record,
            "n_queries": sum(sample.record["n_inputs"] for sample in samples[1:]),
            "digest": key_of(kinds=keys) if keyed else None,
        },
    )


def _sample(
    encoder: Encoder, inputs: Inputs, scheme: Scheme, batch_size: int, *, groups: NDArray[np.int64] | None, source: str
) -> Sample:
    n = len(inputs.ids)
    if not n:
        raise DataError("there are no documents to calibrate on; expected at least one")
    file = calibration_file(scheme)
    seed = int(scheme.option("seed") or 0)
    wanted = DEFAULT_SIZE if file is not None else int(scheme.option("calib") or DEFAULT_SIZE)
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(n, size=min(wanted, n), replace=False)).astype(np.int64)
    part = inputs.part(rows)
    order, key = part.order(), described(encoder, part)
    size = max(batch_size, -(-len(rows) // MOST_BATCHES))
    sets = [order]
    if groups is not None:
        group_of = groups[rows][order]
        sets = [order[group_of == group] for group in np.unique(group_of)]
    return Sample(
        batches=[
            partial(encoder.encode, part.at(rows_of_group[at : at + size]), part.role, size)
            for rows_of_group in sets
            for at in range(0, len(rows_of_group), size)
        ],
        key=None if key is None else {"inputs": key, "batch_size": size},
        rows=rows,
        inputs=(part,),
        record={
            "source": source if file is None else str(file),
            "n_inputs": len(rows),
            "wanted": wanted,
            "of": n,
            "seed": seed,
            "digest": None if key is None else key_of(**key),
        },
    )


def read_texts(path: Path) -> list[str]:
    """Read the calibration texts of a file."""
    if path.suffix not in {".txt", ".jsonl"} or not path.is_file():
        raise DataError(
            f'{path}: expected a file of texts, a .txt file (one text a line) or .jsonl file (objects with a "text")'
        )
    if path.suffix == ".txt":
        texts = [line.strip() for _, line in read_lines(path)]
    else:
        records = [record for _, _, record in read_records(path, '{"text": "..."}', part="text")]
        texts = [f"{record.get('title') or ''} {record['text']}".strip() for record in records]
    if not any(texts):
        raise DataError(f"the calibration file {path} holds no text; expected one a line")
    return [text for text in texts if text]
