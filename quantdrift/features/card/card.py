"""What quantization changed, for the card of a model on the Hugging Face hub: a section of its README.md, and metadata.

The section stands between two marks, and our results in the metadata are known by their metrics: putting them in
again replaces them. Other text stays byte for byte, and other metadata keep their values as they are written; their
comments and layout go. The metadata are those of the hub: base_model, and results in the model-index.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import yaml

from quantdrift.base.display import clean, code, markdown_table, prose
from quantdrift.base.errors import QuantDriftError, RunError
from quantdrift.base.text import counted, percent, some
from quantdrift.metrics import Metric, parse_metric
from quantdrift.metrics.base import estimates
from quantdrift.metrics.keys import key_of
from quantdrift.metrics.numbers import cell, show, show_step
from quantdrift.runs.folder import Run, refuse_copies
from quantdrift.runs.identity import Identity, classifies
from quantdrift.runs.verdict import Tone, verdict
from quantdrift.show.tables import Column, table
from quantdrift.spec.grammar import Spec, parse_pair
from quantdrift.statistics.estimates import Estimate

BEGIN, END = "<!-- quantdrift: begin -->", "<!-- quantdrift: end -->"
"""Around the section."""
TITLE = "## What quantization changed"
_OURS = "drift_"
"""What the types of our own metrics begin with."""
_FLIP, _LOST, _NOISE = map(parse_metric, ("flip@1", "gold_lost@1", "noise_floor"))
_FRONT = re.compile(r"\A\ufeff?---[ \t]*(\r?\n)(?P<yaml>(?:.*\n)*?)---[ \t]*(?:\r?\n|\Z)")
_LARGEST_YAML = 1 << 20
_COLORS: Mapping[Tone, str] = {"bad": "red", "plain": "lightgrey", "warn": "yellow", "good": "brightgreen"}
_WORST_FIRST = (*_COLORS,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run as the card tells it.

    Attributes:
        data: on what.
        scheme: of the quantized version.
        answer: what a model gives an input.
        quality: of searches nDCG@10, of classes accuracy; of the candidate, the reference, and the change.
        run: it.
        estimates: of each metric.
    """

    data: str
    scheme: str
    answer: str
    quality: tuple[Metric, Metric, Metric]
    run: Run
    estimates: Mapping[Metric, Estimate]

    def value(self, metric: Metric) -> float | None:
        """The value of a metric."""
        return self.estimates[metric].value


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What goes into README.md.

    Attributes:
        section: Markdown, from mark to mark.
        metadata: of the front matter; `base_model` is missing where the hub does not have the model.
    """

    section: str
    metadata: Mapping[str, Any]


def card_of(
    runs: Sequence[Run], *, base_model: str | None = None, name: str | None = None, badge: bool = False
) -> Card:
    """The section and the metadata of some runs of one model.

    Args:
        runs: of one reference, on any data, with any schemes.
        base_model: its id on the hub; by default that of the runs, where they say one.
        name: of the quantized model; by default it is made of the model's and the scheme's.
        badge: whether the section begins with an image of the verdict, which readers load from img.shields.io.

    Raises:
        RunError: the runs are of several models, or two are copies of one.
    """
    refuse_copies(runs)
    first = Identity.of(runs[0].record)
    for run in runs[1:]:
        if differs := first.differences(Identity.of(run.record), ("reference", "name"), sides=("here", "there")):
            raise RunError(
                f"a card is of one model; {runs[0].path} (here) and {run.path} (there) are of others: {differs[0]}. "
                "Name runs of one model"
            )
    rows = sorted(map(_row, runs), key=lambda row: row.data)
    model = runs[0].record.get("model") or {}
    base = base_model or (model.get("canonical") if model.get("kind") in {"hub", "embedded"} else None)
    called = clean(str(base or model.get("canonical") or _last(str(model.get("name") or "unknown"))))
    schemes = {row.scheme for row in rows}
    metadata: dict[str, Any] = {"base_model": called, "base_model_relation": "quantized"} if base else {}
    named = name or f"{called.rpartition('/')[2]}-{rows[0].scheme if len(schemes) == 1 else 'quantized'}"
    metadata["model-index"] = [{"name": clean(named), "results": list(_results(rows))}]
    return Card(section=_section(rows, called, badge=badge), metadata=metadata)


def _row(run: Run) -> Row:
    classes, data = classifies(run.record), run.record["data"]
    name = "accuracy" if classes else "ndcg@10"
    quality = parse_metric(name), parse_metric(f"reference.{name}"), parse_metric(f"change.{name}")
    metrics = [_FLIP, _LOST, _NOISE, *quality]
    part = f" ({data['split']})" if data.get("split") not in {None, "test"} else ""
    return Row(
        data=clean(f"{data['name']}{part}"),
        scheme=_scheme_of(run.record),
        answer="class" if classes else "first result",
        quality=quality,
        run=run,
        estimates=dict(zip(metrics, estimates(metrics, run.evidence()), strict=True)),
    )


def _scheme_of(record: Mapping[str, Any]) -> str:
    """The quantized version by a name without folders and addresses: the scheme, or the checkpoint's own name."""
    try:
        pair = parse_pair(record["spec"])
    except QuantDriftError:  # two finished runs have names of the user's own
        return clean(_last(str(record["spec"]).rpartition(" vs ")[2]))
    return str(pair.scheme) if isinstance(pair, Spec) else clean(_last(pair.candidate))


def _last(place: str) -> str:
    """The end of a path or an address.

    >>> _last("./models/a-gptq/"), _last("openai:http://host/v1#served")
    ('a-gptq', 'served')
    """
    return re.split(r"[/\\#]", place.rstrip("/\\"))[-1]


# --- the section ----------------------------------------------------------------------------------


def _section(rows: Sequence[Row], model: str, *, badge: bool) -> str:
    compared = f"{code(model)} at full precision and quantized got the same inputs, and their answers were compared."
    blocks = [BEGIN, TITLE, *([_badge(rows)] if badge else []), f"{_verdict(rows)} {compared}"]
    for answer in sorted({row.answer for row in rows}, reverse=True):
        part = [row for row in rows if row.answer == answer]
        blocks += [_table(part), "\n".join(f"- {line}" for line in _meanings(part))]
    return "\n\n".join([*blocks, prose(_origin(rows)), END])


def _verdict(rows: Sequence[Row]) -> str:
    """The finding in one sentence, bold."""
    flips = [(flip, row) for row in rows if (flip := row.value(_FLIP)) is not None]
    if not flips:
        return "**Whether answers changed is not known.**"
    most, worst = max(flips, key=lambda flip: flip[0])
    if len(flips) == 1:
        n = worst.estimates[_FLIP].n
        count = f"{round(most * n):,} of {counted(n, 'input')} ({percent(most)})"
        return f"**{count} get another {worst.answer}** on {code(worst.data)}."
    least = percent(min(flip for flip, _ in flips))
    return (
        f"**From {least} to {percent(most)} of the inputs get another {worst.answer}**, the most with "
        f"{code(worst.scheme)} on {code(worst.data)}."
    )


def _badge(rows: Sequence[Row]) -> str:
    """The worst verdict as an image, with the largest share of changed answers."""
    flip = max((value for row in rows if (value := row.value(_FLIP)) is not None), default=None)
    judged = min((verdict(row.run.record) for row in rows), key=lambda judged: _WORST_FIRST.index(judged.tone))
    most = "" if len(rows) == 1 else "at most "
    told = judged.word if flip is None else f"{judged.word}, {most}{percent(flip)} of answers changed"
    message = quote(told.replace("-", "--").replace("_", "__"), safe="")
    return f"![quantdrift: {told}](https://img.shields.io/badge/quantdrift-{message}-{_COLORS[judged.tone]})"


def _table(rows: Sequence[Row]) -> str:
    """A row a run; columns that say nothing of any are left out."""

    def column(title: str, metric: Metric, show: Callable[[Metric, Estimate], str]) -> Column:
        return Column(title, lambda row: show(metric, row.estimates[metric]))

    answer, (after, before, change) = rows[0].answer, rows[0].quality
    quality = "accuracy" if answer == "class" else "nDCG@10"
    columns = [
        Column("data", "data"),
        Column("quantized as", "scheme"),
        Column("bits per weight", _bits),
        column(f"another {answer}", _FLIP, cell),
        column(f"right {answer} lost", _LOST, cell),
        column(f"{quality}, full precision", before, show),
        column(f"{quality}, quantized", after, show),
        column("change", change, show_step),
    ]
    grid = table([column for column in columns if any(column.of(row) != "-" for row in rows)], rows)
    return markdown_table(grid.head, grid.rows, names={"data", "quantized as"})


def _bits(row: Row) -> str:
    bits = row.run.record.get("bits_per_weight") or {}
    if bits.get("linear_with_scales") is None:
        return "-"
    of_all = "embedding_table" in row.run.record.get("quantization", {})
    more = f" ({bits['all_parameters']:.4g} over all parameters)" if of_all else ""
    return f"{bits['linear_with_scales']:.4g}{more}"


def _meanings(rows: Sequence[Row]) -> Iterator[str]:
    """What the columns say, for somebody who wants to use the model."""
    for said in dict.fromkeys(text for row in rows for text in row.run.record["data"].get("warnings", ())):
        if said.startswith(("a quick try", "full precision is")):
            yield f"{said[0].upper()}{said[1:]}."
    answer = rows[0].answer
    yield f"*Another {answer}*: of all inputs, the share that get another one than at full precision, better or worse."
    if any(row.value(_LOST) is not None for row in rows):
        yield (
            f"*Right {answer} lost*: of the inputs whose {answer} was right, the share that lost it. "
            f"*{'Accuracy' if answer == 'class' else 'nDCG@10'}* is a mean: where some inputs get better answers and "
            "others worse ones, it can stay as it was."
        )
    yield "In brackets: 95 % intervals. They hold for inputs like these; your own may be harder."
    noise = [floor for row in rows if (floor := row.value(_NOISE)) is not None]
    if noise:
        yield f"Full precision, run in other batches, changes up to {percent(max(noise))} of the answers."


def _origin(rows: Sequence[Row]) -> str:
    records = [row.run.record for row in rows]
    versions = dict.fromkeys(str((record.get("versions") or {}).get("quantdrift") or "") for record in records)
    days = sorted({str((record.get("times") or {}).get("finished") or "")[:10] for record in records})
    inputs = some(dict.fromkeys(f"{row.data} {row.estimates[_FLIP].n:,}" for row in rows), 8)
    return f"Measured by quantdrift {some(versions)}, {days[-1]}. Inputs: {inputs}."


# --- the metadata ---------------------------------------------------------------------------------


def _results(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Entries of the model-index: one for a task and data, with the metrics of every scheme."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        data = row.run.record["data"]
        groups.setdefault((_task(row), data["name"], clean(str(data.get("split") or "test"))), []).append(row)
    for (task, name, split), group in groups.items():
        kind = re.sub(r"[^\w./-]+", "-", name).strip("-./") or "data"
        yield {
            "task": {"type": task, "name": task.replace("-", " ").title()},
            "dataset": {"name": clean(name), "type": kind, "split": split},
            "metrics": [metric for row in group for metric in _metrics(row)],
        }


def _task(row: Row) -> str:
    data = row.run.record["data"]
    if row.answer != "class":
        return "reranking" if data.get("shortlist") else "information-retrieval"
    return {"texts": "text-classification", "images": "image-classification"}.get(data.get("inputs"), "classification")


def _metrics(row: Row) -> Iterator[dict[str, Any]]:
    quality = "Accuracy" if row.answer == "class" else "nDCG@10"
    names = {row.quality[0]: quality, _FLIP: f"Another {row.answer}", _LOST: f"Right {row.answer} lost"}
    for metric, name in names.items():
        if (value := row.value(metric)) is not None:
            kind = key_of(metric) if metric in {_FLIP, _LOST} else key_of(metric).removeprefix(_OURS)
            label = f"{name} ({row.scheme})"
            yield {"type": kind, "value": round(value, 4), "name": label, "args": {"scheme": row.scheme}}


# --- into a README.md -----------------------------------------------------------------------------


def put_into(text: str, card: Card, *, metadata: bool = True) -> str:
    """A README.md with the section and the metadata in it; all else is as it was.

    What an earlier call put in is replaced. The section is new at the end, the metadata at the end of the front
    matter, and results before those of other evaluations.

    Raises:
        QuantDriftError: the front matter holds what ours cannot be put beside.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    whole = _with_section(text, card.section.replace("\n", newline), newline)
    if not metadata:
        return whole
    front = _FRONT.match(whole)
    merged = _merged("" if front is None else front["yaml"], card.metadata).replace("\n", newline)
    if front is None:
        return f"---{newline}{merged}---{newline}{newline}{whole}"
    return whole[: front.start("yaml")] + merged + whole[front.end("yaml") :]


def _with_section(text: str, section: str, newline: str) -> str:
    begin, end = (list(re.finditer(rf"(?m)^{mark}(?=[ \t]*\r?$)", text)) for mark in (BEGIN, END))
    if not begin and not end:
        space = "" if not text else newline if text.endswith("\n") else newline * 2
        return f"{text}{space}{section}{newline}"
    if len(begin) != 1 or len(end) != 1 or end[0].start() < begin[0].start():
        raise QuantDriftError(
            f"expected the marks {BEGIN} and {END} once each, in this order, on lines of their own; got {len(begin)} "
            f"and {len(end)}. Take the old section out by hand"
        )
    return text[: begin[0].start()] + section + text[end[0].end() :]


_BY_HAND = (
    "the metadata cannot be put into the front matter: {}. Without --into they are printed, to be put in by hand; "
    "--no-metadata writes the section alone"
)


def _merged(front: str, ours: Mapping[str, Any]) -> str:
    """Front matter with our metadata; nodes of YAML are moved, and no values, so that a `no` stays a `no`."""
    theirs, added = _mapping(front), _mapping(yaml.safe_dump(dict(ours), sort_keys=False, allow_unicode=True))
    held = _entries(theirs)
    if "base_model" in ours and "base_model" in held:
        node = held["base_model"]
        bases = [base.value for base in (node.value if isinstance(node, yaml.SequenceNode) else [node])]
        if ours["base_model"] not in bases:
            other = f"it has base_model {', '.join(map(str, bases))!r:.80}, and the runs are of {ours['base_model']}"
            raise QuantDriftError(_BY_HAND.format(other))
    if "model-index" in held:
        results = _results_in(held["model-index"])
        others = [result for result in results.value if not _is_ours(result)]
        results.value = [*_results_in(_entries(added)["model-index"]).value, *others]
        results.flow_style = False
    theirs.value += [(key, value) for key, value in added.value if key.value not in held]
    return str(yaml.serialize(theirs, Dumper=yaml.SafeDumper, allow_unicode=True, width=math.inf))


def _mapping(front: str) -> Any:
    """The node of some front matter."""
    if len(front) > _LARGEST_YAML:
        raise QuantDriftError(_BY_HAND.format(f"it is larger than {_LARGEST_YAML:,} characters"))
    try:
        node = yaml.compose(front or "{}", yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        line = f" (line {mark.line + 2})" if (mark := getattr(error, "problem_mark", None)) else ""
        raise QuantDriftError(_BY_HAND.format(f"it is not YAML{line}")) from error
    if not isinstance(node, yaml.MappingNode):
        raise QuantDriftError(_BY_HAND.format("it is not a list of keys with values"))
    node.flow_style = False
    return node


def _entries(node: Any) -> dict[str, Any]:
    return {key.value: value for key, value in node.value} if isinstance(node, yaml.MappingNode) else {}


def _results_in(index: Any) -> Any:
    """The results in a model-index, which is one model."""
    models = index.value if isinstance(index, yaml.SequenceNode) else []
    results = _entries(models[0]).get("results") if len(models) == 1 else None
    if not isinstance(results, yaml.SequenceNode):
        raise QuantDriftError(_BY_HAND.format("its model-index is not one model with a list of results"))
    return results


def _is_ours(result: Any) -> bool:
    """Whether a result has metrics that only we have."""
    metrics = _entries(result).get("metrics")
    types = [_entries(metric).get("type") for metric in metrics.value] if isinstance(metrics, yaml.SequenceNode) else []
    return any(kind is not None and str(kind.value).startswith(_OURS) for kind in types)
