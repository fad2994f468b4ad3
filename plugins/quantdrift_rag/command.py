"""`quantdrift rag`: find the answers that a generator changes when its search is quantized."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from quantdrift.parts import (
    Grid,
    Interrupted,
    Output,
    QuantDriftError,
    argument,
    as_json,
    extras_named,
    find_runs,
    flag,
    option,
    output_folder,
    prints,
    progress_bars,
    shown,
    with_interval,
)
from quantdrift_rag.answers import RECORD, Rag, RagRecord
from quantdrift_rag.questions import ANSWERS, Generator, read_questions

_MEASURES = {"exact_match": "exact match", "token_f1": "token F1", "gold_in_context": "gold in context"}
_TEXT = 120
"""Characters of a question or an answer on the screen at most."""
_SMALL = 0.001
"""Smallest p-value that is written out."""


@dataclass(frozen=True, kw_only=True)
class RagOptions:
    """The options of `quantdrift rag`."""

    what: list[Path] = argument(
        "RUN...: Run folders of searches, one per scheme, all of one reference; or a folder that quantdrift rag wrote, "
        "to show it again."
    )
    model: str | None = option("NAME: The generator, as in lm_eval --model: hf, vllm, local-completions, ...")
    model_args: str = option(
        "KEY=VALUE,...: As in lm_eval --model_args: pretrained=Qwen/Qwen3-8B,dtype=bfloat16", default=""
    )
    answers: Path | None = option(
        "FILE: Gold answers: JSON lines with _id or question, and answers; by default answers.jsonl beside the data."
    )
    data: Path | None = option("FOLDER: The data of the runs, if they have moved.")
    passages: int = option("Passages in the prompt for each question.", default=5, min=1, max=100)
    max_tokens: int = option("Tokens of an answer at most; it also ends at the end of its line.", default=32, min=1)
    chat: bool = flag("Apply the chat template of the generator.")
    batch_size: int = option("Prompts per call; answers are saved after each call.", default=8, min=1)
    device: str | None = option("DEVICE: cpu, cuda, cuda:1 or mps, for a generator that runs here.")
    changed: int = option("N: How many of the changed answers to show, right to wrong first.", default=5, min=0)
    out: Path | None = option(
        "-o --out FOLDER: Folder for answers and result; by default quantdrift-runs/rag_DATA_MODEL."
    )
    quiet: bool = option("-q --quiet: No progress bars.", default=False)


@prints("json", "markdown")
def command(options: RagOptions) -> Output:
    """Find the answers that a generator changes when the search behind it is quantized.

    Each question is asked without passages, with the first passages of the reference, and with those of each candidate.
    The generator is at full precision and greedy, so every change comes from the search. Each prompt is asked once and
    its answer saved: the same command resumes where it was stopped.

    For example: quantdrift run minilm@W4+query --data ./nq, then
    quantdrift rag quantdrift-runs/minilm* --model hf --model-args pretrained=Qwen/Qwen3-8B --answers nq.jsonl

    More: docs/guides/rag.md
    """
    first = options.what[0]
    if len(options.what) == 1 and (first.name == RECORD or (first / RECORD).is_file()):
        record = RagRecord.read(first / RECORD if first.is_dir() else first)
        return _shown(Rag(record=record), options.changed, None)
    if options.model is None:
        raise QuantDriftError("expected a generator: --model hf --model-args pretrained=NAME, or another of lm-eval's")
    questions = read_questions(  # refuses before a model loads
        find_runs(options.what), answers=options.answers, data=options.data, n_passages=options.passages
    )
    generator = _generator(options)
    place = options.out or output_folder("rag", questions.about["data"], generator.name)
    RagRecord.check_place(place / RECORD)
    try:
        record = questions.answered_by(generator, place / ANSWERS, progress_bars(quiet=options.quiet))
    except KeyboardInterrupt:
        raise Interrupted(f"answers are saved in {place / ANSWERS}; the same command resumes from there") from None
    record.write(place / RECORD)
    return _shown(Rag(record=record), options.changed, place)


def _generator(options: RagOptions) -> Generator:
    with extras_named(needed_for="quantdrift rag", extra="lm-eval"):
        load = entry_points(group="quantdrift.generators")["lm-eval"].load()
        settings = {name: getattr(options, name) for name in ("batch_size", "max_tokens", "chat", "device")}
        generator: Generator = load(options.model, options.model_args, **settings)
        return generator


# --- tables and sentences -------------------------------------------------------------------------


def _shown(rag: Rag, n_changed: int, place: Path | None) -> Output:
    record = rag.record
    passages = f"{record.n_passages:,} passage" + ("" if record.n_passages == 1 else "s")
    return Output(
        data=_json(rag, n_changed),
        title=f"{len(record.ids):,} questions of {shown(record.data)}, {passages} each",
        about=[f"{record.kind}: {shown(record.generator, _TEXT)}"],
        grids=[_table(rag), _differences(rag), *_changes(rag, n_changed)],
        lines=[f"Note: {note}." for note in record.notes],
        next=[] if place is None else [f"written: {place}"],
    )


def _table(rag: Rag) -> Grid:
    """The table of the paper, with intervals."""
    rows = []
    for name, estimates in rag.estimates.items():
        effect = rag.effects.get(name)
        row = [shown(name)]
        row += [with_interval(estimates[key]) if key in estimates else "-" for key in _MEASURES]
        if effect is None:
            row += ["-"] * 3
        else:
            changed = f"{effect.n_changed:,} ({100 * (effect.changed.value or 0):.1f} %)"
            row += [changed, f"{effect.right_to_wrong:,}", f"{effect.wrong_to_right:,}"]
        rows.append(row)
    head = ["passages of", *_MEASURES.values(), "answers changed", "right to wrong", "wrong to right"]
    return Grid(head=head, rows=rows, stacked=True)


def _differences(rag: Rag) -> Grid:
    """The changes of the means, and the tests."""
    rows = []
    for name, effect in rag.effects.items():
        steps = [effect.differences.get(key) for key in _MEASURES]
        row = [shown(name), "-" if effect.other_passages is None else f"{effect.other_passages:,}"]
        row += ["-" if step is None else with_interval(step, sign="+") for step in steps]
        rows.append([*row, *("<0.001" if p < _SMALL else f"{p:.3f}" for p in (effect.p_value, effect.p_holm))])
    head = ["passages of", "other passages", *_MEASURES.values(), "p", "p (Holm)"]
    title = "candidate minus full precision, in percentage points (95 %); p-values are of exact match"
    return Grid(title=title, head=head, rows=rows, stacked=True)


def _changes(rag: Rag, n_changed: int) -> Iterator[Grid]:
    head = ["question", "full precision", "candidate", "gold", "change"]
    for name, effect in rag.effects.items():
        rows = []
        for change in effect.changes[:n_changed]:
            texts = (change.question, change.before, change.after, " | ".join(change.golds))
            rows.append([*(shown(text, _TEXT) for text in texts), change.kind])
        if rows:
            title = f"{shown(name)}: {len(rows):,} of {len(effect.changes):,} changed answers"
            yield Grid(title=title, head=head, rows=rows, words=head)


def _json(rag: Rag, n_changed: int) -> dict[str, Any]:
    record = rag.record
    conditions = []
    for part in record.conditions:
        condition: dict[str, Any] = {"name": part.name, "spec": part.spec, **as_json(rag.estimates[part.name])}
        if (effect := rag.effects.get(part.name)) is not None:
            condition |= {**as_json(effect), "changes": as_json(effect.changes[:n_changed])}
        conditions.append(condition)
    about = ("generator", "kind", "data", "n_passages", "gold_by", "notes")
    return {**{key: getattr(record, key) for key in about}, "n_questions": len(record.ids), "conditions": conditions}
