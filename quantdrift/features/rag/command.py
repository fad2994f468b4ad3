"""`quantdrift rag`: which answers a generator changes when the search behind it is quantized."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantdrift.base.display import shown
from quantdrift.base.errors import MissingExtraError, QuantDriftError
from quantdrift.base.extras import extras_named
from quantdrift.base.progress import Silent, Terminal
from quantdrift.base.records import check_writable
from quantdrift.base.text import counted, percent, with_interval
from quantdrift.cli import Interrupted
from quantdrift.cli.options import argument, flag, option, prints
from quantdrift.metrics.numbers import show_p
from quantdrift.show.output import Output
from quantdrift.show.tables import Grid

if TYPE_CHECKING:
    from quantdrift.features.rag.answers import Effect, Rag, RagRecord
    from quantdrift.features.rag.questions import Generator

_MEASURES = {"exact_match": "exact match", "token_f1": "token F1", "gold_in_context": "gold in context"}
_TEXT = 120
"""Characters of a question or an answer on the screen."""


@dataclass(frozen=True, kw_only=True)
class RagOptions:
    """The options of `quantdrift rag`."""

    what: list[Path] = argument(
        "RUN...: Run folders of searches, one a scheme, all of one reference. Or intermediate_data.json of FlashRAG "
        "runs, the reference's first. Or a folder that quantdrift rag wrote, to see it again."
    )
    model: str | None = option("NAME: The generator, as lm_eval --model: hf, vllm, local-completions, ...")
    model_args: str = option(
        "KEY=VALUE,...: As lm_eval --model_args: pretrained=Qwen/Qwen3-8B,dtype=bfloat16", default=""
    )
    reader: str | None = option(
        "FOLDER: In place of a generator an extractive reader, which marks the answer in a passage: a model of "
        "transformers for question answering."
    )
    answers: Path | None = option(
        "FILE: Gold answers: JSON lines with _id and answers, or JSON in SQuAD's layout. By default answers.jsonl "
        "beside the data."
    )
    data: Path | None = option("FOLDER: The data that the runs were made of, if they have moved.")
    passages: int = option("How many passages to read for each question.", default=5, min=1, max=100)
    limit: int | None = option("N: Ask the first N questions only.", min=1)
    max_tokens: int = option("Tokens of an answer, which ends at the end of its line.", default=32, min=1)
    chat: bool = flag("Put prompts through the chat template of the generator.")
    batch_size: int = option("Prompts per call; answers are kept after each call.", default=8, min=1)
    device: str | None = option("NAME: cpu, cuda, cuda:1 or mps, of a generator that runs here.")
    control: Path | None = option("FILE: Of FlashRAG: intermediate_data.json of a run without passages.")
    changed: int = option("N: How many of the changed answers to show, right to wrong first.", default=5, min=0)
    out: Path | None = option(
        "-o --out FOLDER: Where answers and result lie; by default quantdrift-runs/rag_DATA_MODEL."
    )
    quiet: bool = option("-q --quiet: No progress bars.", default=False)


@prints("json", "markdown")
def command(options: RagOptions) -> Output:
    """Which answers does a generator change, when the search that it reads from is quantized?

    Each question is asked without passages, with those that the reference found first, and with those that each
    candidate found. The generator is at full precision and greedy, so what changes comes from the search. Each prompt
    is asked once; what was answered is kept, and the same command goes on where it was stopped.

    For example: quantdrift run minilm@W4+query --data ./nq, then
    quantdrift rag quantdrift-runs/minilm* --model hf --model-args pretrained=Qwen/Qwen3-8B --answers nq.jsonl
    """
    from quantdrift.features.rag.answers import RECORD, Rag, RagRecord

    first = options.what[0]
    place: Path | None
    if len(options.what) == 1 and (first.name == RECORD or (first / RECORD).is_file()):
        place = first / RECORD if first.is_dir() else first
        return _shown(Rag(record=RagRecord.read(place)), options.changed, None)
    if all(path.suffix == ".json" and path.name != "run.json" for path in options.what):
        from quantdrift.features.rag.flashrag import read_flashrag

        if options.model or options.reader:
            raise QuantDriftError("a finished run of FlashRAG has its answers; leave --model and --reader out")
        record, place = read_flashrag(options.what, options.control), options.out
    else:
        record, place = _answered(options)
    if place is not None:
        record.write(place / RECORD)
    return _shown(Rag(record=record), options.changed, place)


def _answered(options: RagOptions) -> tuple[RagRecord, Path]:
    """What a generator or a reader answers, and the folder of the result."""
    from quantdrift.cli.measuring import RUNS, slug
    from quantdrift.features.rag.answers import RECORD, RagRecord
    from quantdrift.features.rag.questions import ANSWERS, read_questions
    from quantdrift.runs.folder import find_runs

    if (options.model is None) == (options.reader is None):
        raise QuantDriftError(
            "expected what answers: --model hf --model-args pretrained=NAME, or another model of lm-eval's; or "
            "--reader FOLDER, an extractive reader"
        )
    if options.control is not None:
        raise QuantDriftError("--control is for finished runs of FlashRAG; here the control is asked")
    runs = find_runs(options.what)
    # what cannot be asked is told before a model loads
    every = read_questions(runs, answers=options.answers, data=options.data, n_passages=options.passages)
    generator = _generator(options)
    questions = every.part(limit=options.limit, left_out=generator.trained_on)
    place = options.out or RUNS / f"rag_{slug(questions.data)}_{slug(generator.name)}"
    check_writable(place / RECORD, what="the result")
    RagRecord.check_place(place / RECORD)
    try:
        progress = Silent() if options.quiet else Terminal()
        return questions.answered_by(generator, place / ANSWERS, progress), place
    except KeyboardInterrupt:
        raise Interrupted(f"answers are kept in {place / ANSWERS}; the same command goes on from there") from None


def _generator(options: RagOptions) -> Generator:
    needed_for = "quantdrift rag"
    if options.reader is not None:
        with extras_named(needed_for=needed_for):
            from quantdrift.features.rag.reader import Reader

            return Reader(options.reader, batch_size=options.batch_size, device=options.device)
    entry = next(iter(entry_points(group="quantdrift.generators", name="lm-eval")), None)
    if entry is None:
        raise MissingExtraError("lm_eval", "lm-eval", needed_for=needed_for)
    with extras_named(needed_for=needed_for, extra="lm-eval"):
        made: Generator = entry.load()(
            options.model,
            options.model_args,
            batch_size=options.batch_size,
            max_tokens=options.max_tokens,
            chat=options.chat,
            device=options.device,
        )
        return made


# --- tables and sentences -------------------------------------------------------------------------


def _shown(rag: Rag, n_changed: int, place: Path | None) -> Output:
    record = rag.record
    what = {"generator": "generator", "extractive reader": "extractive reader, no generator", "FlashRAG": "answers"}
    about = [f"{what[record.kind]}: {shown(record.generator, _TEXT)}"]
    about += (
        ["only the query encoder is quantized; documents are embedded by the reference"] if _query_only(rag) else []
    )
    return Output(
        data=_json(rag, n_changed),
        title=f"{len(record.ids):,} questions of {shown(record.data)}, {counted(record.n_passages, 'passage')} each",
        about=about,
        grids=[_table(rag), _differences(rag), *_changes(rag, n_changed)],
        lines=[*_sentences(rag), *(f"Note: {note}." for note in record.notes)],
        next=[] if place is None else [f"written: {place}"],
    )


def _table(rag: Rag) -> Grid:
    """The paper's table, with intervals."""
    rows = []
    for name, scored in rag.scored.items():
        found, effect = scored.estimates, rag.effects.get(name)
        row = [_short(rag, name), *(with_interval(found[each]) if each in found else "-" for each in _MEASURES)]
        if effect is None:
            rows.append([*row, "-", "-", "-"])
        else:
            changed = f"{effect.n_changed:,} ({percent(effect.changed.value)})"
            rows.append([*row, changed, f"{effect.right_to_wrong:,}", f"{effect.wrong_to_right:,}"])
    head = ["passages of", *_MEASURES.values(), "answers changed", "right to wrong", "wrong to right"]
    return Grid(head=head, rows=rows, stacked=True)


def _differences(rag: Rag) -> Grid:
    """By how much the means move, and whether more answers turn one way than the other."""
    rows = []
    for name, effect in rag.effects.items():
        steps = [effect.differences.get(each) for each in _MEASURES]
        row = [_short(rag, name), "-" if effect.other_passages is None else f"{effect.other_passages:,}"]
        row += ["-" if step is None else with_interval(step, sign="+") for step in steps]
        rows.append([*row, show_p(effect.p_value), show_p(effect.p_holm)])
    head = ["passages of", "other passages", *_MEASURES.values(), "p", "p (Holm)"]
    title = "candidate minus full precision, in percentage points (95 %); p that exact match is the same"
    return Grid(title=title, head=head, rows=rows, stacked=True)


def _query_only(rag: Rag) -> bool:
    return all("+query" in (each.spec or "").rpartition("@")[2] for each in rag.record.candidates)


def _short(rag: Rag, name: str) -> str:
    """A name without what is said above the table of all of them."""
    return shown(name.replace("+query", "") if _query_only(rag) else name)


def _sentences(rag: Rag) -> Iterator[str]:
    for name, effect in rag.effects.items():
        moved = 100 * (effect.differences["exact_match"].value or 0)
        share = f"{effect.n_changed:,} of {effect.changed.n:,} answers ({percent(effect.changed.value)}) change"
        turned = f"{effect.right_to_wrong:,} turn from right to wrong, {effect.wrong_to_right:,} from wrong to right"
        yield f"{_short(rag, name)}: {share}, while exact match moves by {moved:+.1f} points: {turned}."


def _changes(rag: Rag, n_changed: int) -> Iterator[Grid]:
    for name, effect in rag.effects.items():
        if rows := [_change_row(effect, number) for number in range(min(n_changed, len(effect.changes)))]:
            head = ["question", "full precision", "candidate", "gold", "change"]
            title = f"{_short(rag, name)}: {len(rows):,} of {len(effect.changes):,} changed answers"
            yield Grid(title=title, head=head, rows=rows, words=head)


def _change_row(effect: Effect, number: int) -> list[str]:
    one = effect.changes[number]
    texts = (one.question, one.before, one.after, " | ".join(one.golds))
    return [*(shown(text, _TEXT) for text in texts), one.kind]


def _json(rag: Rag, n_changed: int) -> dict[str, Any]:
    record = rag.record
    conditions = []
    for name, scored in rag.scored.items():
        effect, own = rag.effects.get(name), {key: each.to_json() for key, each in scored.estimates.items()}
        told: dict[str, Any] = {"name": name, "spec": scored.condition.spec, **own}
        if effect is not None:
            changes = [asdict(one) for one in effect.changes[:n_changed]]
            told |= {
                **{key: value for key, value in asdict(effect).items() if key != "name"},
                "changed": effect.changed.to_json(),
                "differences": {key: each.to_json() for key, each in effect.differences.items()},
                "changes": changes,
            }
        conditions.append(told)
    about = ("generator", "kind", "data", "n_passages", "gold_by", "notes")
    return {**{key: getattr(record, key) for key in about}, "n_questions": len(record.ids), "conditions": conditions}
