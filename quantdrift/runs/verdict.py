"""The verdict on a run: what forbids one, what it is and why, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from quantdrift.base.errors import QuantDriftError
from quantdrift.base.text import counted, near, percent
from quantdrift.kinds.stage import STAGES, Advice
from quantdrift.runs.identity import answers, classifies
from quantdrift.runs.words import Record, estimates_of
from quantdrift.scheme import Scheme
from quantdrift.spec.grammar import Spec, parse_pair, stages_of
from quantdrift.spec.remedies import remedies_of, repaired_kinds

if TYPE_CHECKING:
    from quantdrift.statistics.estimates import Estimate
    from quantdrift.statistics.standing import Standing, Tolerances

Tone = Literal["good", "warn", "bad", "plain"]
"""What a verdict is to whoever reads it."""

TONES: Mapping[str, Tone] = {
    "safe to deploy": "good",
    "answers stay": "good",
    "answers change, right ones stay": "warn",
    "answers change": "warn",
    "right answers lost": "bad",
    "quality fell": "bad",
    "open": "plain",
    "no verdict": "plain",
    "no answers": "plain",
}
"""Every word that a verdict can have, and its tone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a run.

    Attributes:
        word: one of `TONES`.
        sentences: why, with the tolerances as they were applied; the first says what decides.
        tone: of the word.
        next: what to do, in a sentence; empty where there is nothing.
        command: that does it, as it is typed; empty where none works for this run.
    """

    word: str
    sentences: tuple[str, ...]
    tone: Tone
    next: str = ""
    command: str = ""

    @property
    def sentence(self) -> str:
        """Why, on one line."""
        return " ".join(self.sentences)

    @property
    def told(self) -> str:
        """The word, the reason and what to do, without the command, which stands on a line of its own."""
        return " ".join(filter(None, (f"{self.word}.", self.sentence, self.next)))


# --- what forbids a verdict -----------------------------------------------------------------------

_CHANCE = "reference_near_chance"
"""Of what a measurement finds, what says nothing of changed answers, but leaves no right ones to lose."""
_ROUNDING = 1e-4
"""Scores that move by more than this from batch to batch move by more than rounding."""


def _unstable(record: Record, tolerances: Tolerances) -> Iterator[str]:
    """An arm that changes more of its own answers, run again in other batches, than is tolerated."""
    estimates, floor = estimates_of(record), record.get("noise_floor") or {}
    arms = {
        "reference": (getattr(estimates.get("noise_floor"), "value", None), floor.get("largest")),
        "candidate": ((floor.get("candidate") or {}).get("share"), (floor.get("candidate") or {}).get("largest")),
    }
    for arm, (share, moved) in arms.items():
        if share is not None and share > tolerances.changed:
            cause = ""
            if moved is not None and moved > _ROUNDING:
                cause = (
                    f" Scores move by {moved:.2g}, where rounding moves 1e-6: what a text gets depends on what else is "
                    "in its batch, as with padding on the wrong side"
                )
                one_by_one = (record.get("settings") or {}).get("batch_size") == 1
                cause += "." if one_by_one else "; --batch-size 1 puts texts through one by one."
            yield (
                f"The {arm} does not answer twice alike: run again in other batches, {percent(share)} of its own first "
                f"answers change, and {percent(tolerances.changed)} are tolerated.{cause}"
            )


def _told_by_the_run(record: Record, tolerances: Tolerances) -> Iterator[str]:
    """An arm that tells nothing apart, as the measurement found."""
    del tolerances
    found = (record.get("data") or {}).get("forbids") or {}
    yield from (f"{sentence[:1].upper()}{sentence[1:]}." for code, sentence in found.items() if code != _CHANCE)


def _finds_itself(record: Record, tolerances: Tolerances) -> Iterator[str]:
    """Queries that are ranked among the documents they stand in: their first answer is themselves, in both arms."""
    del tolerances
    if (record.get("settings") or {}).get("own_ids") == "kept":
        yield (
            "Queries stand in the corpus and are kept there (--keep-own-ids), so that their first answer is themselves "
            "at any precision. Without that option they are left out of their own rankings."
        )


FORBIDDING: tuple[Callable[[Record, Tolerances], Iterator[str]], ...] = (_unstable, _finds_itself, _told_by_the_run)
"""What makes a verdict meaningless, a function each, which yields a sentence for every such fact of a run."""


def forbidden(record: Record, tolerances: Tolerances | None = None) -> list[str]:
    """Why there is no verdict on a run, one sentence each; empty where there is one."""
    given = tolerances_of(record) if tolerances is None else tolerances
    return [sentence for finds in FORBIDDING for sentence in finds(record, given)]


# --- the verdict ----------------------------------------------------------------------------------


def tolerances_of(record: Record) -> Tolerances:
    """The tolerances that a run was asked with; the defaults where it says none."""
    from quantdrift.statistics.standing import MARGIN, Tolerances  # noqa: PLC0415 -- scipy

    said = record.get("tolerances") or {}
    return Tolerances(changed=said.get("changed") or MARGIN, mean=said.get("mean") or MARGIN)


def verdict(record: Record, tolerances: Tolerances | None = None) -> Verdict:
    """Judge what a candidate does, by the rule of `standing` and the intervals of the run.

    Args:
        record: the content of run.json.
        tolerances: what is let pass; what the run was asked with if not given.
    """
    given = tolerances_of(record) if tolerances is None else tolerances
    answer = answers(record)
    if why := forbidden(record, given):
        return Verdict(word="no verdict", sentences=tuple(why), tone=TONES["no verdict"])
    no_labels = str(((record.get("data") or {}).get("forbids") or {}).get(_CHANCE) or "")
    outcome = judged(
        estimates_of(record), classes=answer != "top-1", answer=answer, tolerances=given, no_labels=no_labels
    )
    return advised(outcome, record)


JUDGED_BY = ("flip@1", "harm", "benefit", "reference.accuracy")
"""Metrics that a verdict looks at, beside the change of nDCG@10 or accuracy and the noise floor."""


def judged(
    estimates: Mapping[str, Estimate],
    *,
    classes: bool,
    answer: str,
    tolerances: Tolerances | None = None,
    no_labels: str = "",
) -> Verdict:
    """Judge by `JUDGED_BY`, noise_floor and change.accuracy or change.ndcg@10, so far as they are there.

    `no_labels` says why labels tell nothing, where there are some.
    """
    from quantdrift.statistics.standing import Tolerances, standing  # noqa: PLC0415 -- scipy

    flip, given = estimates.get("flip@1"), tolerances or Tolerances()
    if flip is None or flip.value is None:
        return Verdict(word="no answers", sentences=("No input has answers that can be compared.",), tone="plain")
    lost, won = (None, 0) if no_labels else lost_and_won(estimates)
    change = estimates.get("change.accuracy" if classes else "change.ndcg@10")
    change = None if change is None or change.value is None or no_labels else change
    stands = standing(flip, lost=lost, change=change, tolerances=given)
    changed = _changed(flip, estimates.get("noise_floor"), answer, given)
    told = [changed] if lost is None else [_lost(lost, won, answer, given), changed]
    if stands.word not in {"right answers lost", "quality fell"}:
        told.reverse()
    if change is not None:
        hides = stands.answers.get("lost") == "yes" and stands.answers["mean"] == "no"
        told.insert(1 if hides else len(told), _mean(change, stands, given, classes=classes, hides=hides))
    n_inputs = estimates["flip@1"].n
    told += _open(stands, given, no_labels if change is None else None, n_inputs=n_inputs, classes=classes)
    return Verdict(word=stands.word, sentences=tuple(told), tone=TONES[stands.word])


def lost_and_won(estimates: Mapping[str, Estimate]) -> tuple[Estimate | None, int]:
    """Of the right first answers the share that is lost, None where there was none; and how many others were won."""
    from quantdrift.statistics.estimates import share_estimate  # noqa: PLC0415 -- scipy

    counts = {}
    for name in ("harm", "benefit", "reference.accuracy"):
        estimate = estimates.get(name)
        if estimate is None or estimate.value is None:
            return None, 0
        counts[name] = round(estimate.value * estimate.n)
    right = counts["reference.accuracy"]
    return (share_estimate(counts["harm"], right) if right else None), counts["benefit"]


def _range(estimate: Estimate) -> str:
    low, high = ("" if end is None else f"{100 * end:.1f}" for end in (estimate.low, estimate.high))
    return f"{low} to {high} %"


def _changed(flip: Estimate, noise: Estimate | None, answer: str, tolerances: Tolerances) -> str:
    alone = "" if noise is None or noise.value is None else f"; noise alone changes {percent(noise.value)}"
    return (
        f"{percent(flip.value)} of the inputs have another {answer} ({_range(flip)}; {100 * tolerances.changed:g} % "
        f"are tolerated{alone})."
    )


def _lost(lost: Estimate, won: int, answer: str, tolerances: Tolerances) -> str:
    n_lost = round((lost.value or 0.0) * lost.n)
    others = f"{won:,} {'other was' if won == 1 else 'others were'} won"
    return (
        f"{n_lost:,} of {lost.n:,} right {'first ' if answer == 'top-1' else ''}answers are lost "
        f"({percent(lost.value)}, {_range(lost)}; {100 * tolerances.changed:g} % are tolerated), and {others}."
    )


def _mean(change: Estimate, stands: Standing, tolerances: Tolerances, *, classes: bool, hides: bool) -> str:
    """The mean, in points of accuracy or in nDCG's own unit."""
    factor, form, unit = (100, "+.1f", " points") if classes else (1, "+.4f", "")
    value, low, high = (factor * (end or 0.0) for end in (change.value, change.low, change.high))
    moved = "falls" if high < 0 else "rises" if low > 0 else "is not shown to move"
    rule = {"no": "is ruled out", "yes": "is shown", "open": "is not ruled out"}[stands.answers["mean"]]
    name = "nDCG@10" if not classes else "accuracy" if hides else "Accuracy"
    fall = f"a fall by {factor * tolerances.mean:g}{unit} {rule}"
    between = f", {low:{form}} to {high:{form}}" if low < high else " on every input"
    said = f"{name} {moved} ({value:{form}}{unit}{between}; {fall})."
    return f"The mean hides it: {said}" if hides else said


def _open(
    stands: Standing, tolerances: Tolerances, no_labels: str | None, *, n_inputs: int, classes: bool
) -> Iterator[str]:
    """The questions that are open, and how many inputs it takes in all to close them; without labels, why."""
    fall = f"accuracy falls by {100 * tolerances.mean:g} points" if classes else f"nDCG@10 falls by {tolerances.mean:g}"
    limit = f"more than {100 * tolerances.changed:g} %"
    questions = {
        "changed": f"whether {limit} of the answers change",
        "lost": f"whether {limit} of the right ones are lost",
        "mean": f"whether {fall}",
    }
    if no_labels is not None:
        yield f"Open: whether right answers are lost{f': {no_labels}' if no_labels else ', for lack of labels'}."
    for name, needed in stands.needed.items():
        takes = "these do not tell"
        if needed is not None:  # of so rough a figure two digits, upwards
            least = max(needed, n_inputs + 1)
            step = 10 ** max(0, len(str(least)) - 2)
            takes = f"it takes about {counted(-(-least // step) * step, 'input')} like these in all"
        yield f"Open: {questions[name]}; {takes}."


# --- what to do next ------------------------------------------------------------------------------


def advised(outcome: Verdict, record: Record, stage: str | None = None) -> Verdict:
    """A verdict with what to do where answers change, by the stage that changes most.

    Args:
        outcome: the verdict.
        record: the content of run.json.
        stage: the name of that stage, where a waterfall has told it; else it is taken from the run, if that knows.
    """
    outcome = replace(outcome, next="", command="")
    if outcome.tone not in {"warn", "bad"}:
        return outcome
    try:
        pair = parse_pair(str(record.get("spec")))
    except QuantDriftError:  # of other programs
        return outcome
    # what a checkpoint changes is mended where it was made
    if not isinstance(pair, Spec) or (mend := _mend_of(record, pair.scheme, stage)) is None:
        return outcome
    return replace(
        outcome, next=mend.what, command=typed(record, mend.command, f"{pair.model}@{mend.scheme or pair.scheme}")
    )


def _mend_of(record: Record, scheme: Scheme, stage: str | None) -> Advice | None:
    metrics = record.get("metrics") or {}
    codes, index = ((metrics.get(name) or {}).get("value") for name in ("codes.flip@1", "index.flip@1"))
    by_codes = codes is not None and index is not None and codes >= index
    # without an index, or with one whose codes change more than its search, it is one of the other stages
    stages = [name for name in stages_of(scheme) if not (by_codes and name == "index")] or [*stages_of(scheme)]
    if stage is None and codes is not None and not by_codes and "index" in stages:
        stage = "index"
    if stage is None and len(stages) > 1:  # beside +query a stage cannot be measured alone
        return None if scheme.query_only else Advice(what="See which stage changes most.", command="waterfall")
    largest = STAGES[stage or stages[0]]
    mend = STAGES["rescoring"].advice(scheme) if by_codes and largest is STAGES["index"] else None
    mend = mend or largest.advice(scheme)
    if mend is None:
        return None
    if mend.scheme is not None and mend.scheme.option("rescore") != scheme.option("rescore"):  # which takes vectors
        if _of_rows(record):
            return Advice(what="Store more of each row.", scheme=scheme.with_option("emb", "fp16"), command="run")
        if index is None and "index" in stages:
            return Advice(what="Take an index that finds more, or search more of it (+search=).")
    offered = {*largest.remedies(scheme)} & {*remedies_of(scheme, *repaired_kinds(scheme))}
    return replace(mend, command="repair") if offered and not mend.command else mend


def _of_rows(record: Record) -> bool:
    """Whether a model makes several rows of each input."""
    return (record.get("model") or {}).get("one_vector") is False


_BATCH = 32
"""Inputs in a batch where nobody says."""
_MEASURING = {"shortlist", "classes", "prompts", "revision", "trust", "rows", "untrained"}
_TAKES = {
    **dict.fromkeys(("gate", "ship"), _MEASURING),
    "run": {"limit", "shards", *_MEASURING},
    "repair": {"classes", "prompts", "revision", "trust"},
    "waterfall": {"rows"},
}
"""What the data of a command may be, and which options it has beside theirs."""


def typed(record: Record, command: str, spec: str) -> str:
    """A command on the data of a run, with the options that make what was measured; empty where it refuses these."""
    from quantdrift.data.labelled import task_names  # noqa: PLC0415 -- numpy

    data, settings, takes = record.get("data") or {}, record.get("settings") or {}, _TAKES.get(command, set())
    path, limit, shortlist = data.get("path"), data.get("limit"), data.get("shortlist")
    dtype = str(settings.get("dtype") or "float32").removeprefix("torch.")
    asked = {
        "shortlist": shortlist,
        "classes": classifies(record),
        "revision": (record.get("model") or {}).get("revision"),
        "prompts": settings.get("query_prompt") or settings.get("document_prompt"),
        "shards": data.get("shards"),
        "trust": settings.get("trust_remote_code"),
        "rows": _of_rows(record),
        "untrained": classifies(record) and not data.get("n_train"),
        # what is made of other data, or read by a harness, has no option that names it
        "other": data.get("harness") or data.get("corpus_size") or data.get("kind") not in {None, "classification"},
    }
    here = path or data.get("name") in task_names()
    if not command or not here or any(held and what not in takes for what, held in asked.items()):
        return ""
    words = ["quantdrift", command, spec, *(("--data", near(path)) if path else ("--task", data["name"]))]
    words += ["--columns", data["columns"]] if data.get("columns") else []
    words += ["--split", data["split"]] if data.get("split") not in {None, "test"} else []
    if shortlist:
        top = (settings.get("shortlist") or {}).get("top")
        words += ["--shortlist", near(shortlist.get("path")), *(["--top", top] if top else [])]
    words += ["--limit", limit.get("n")] if limit and "limit" in takes else []
    words += ["--dtype", dtype] if dtype != "float32" else []
    words += ["--revision", asked["revision"]] if asked["revision"] else []
    words += ["--keep-own-ids"] if settings.get("own_ids") == "kept" else []
    words += ["--batch-size", settings["batch_size"]] if settings.get("batch_size", _BATCH) != _BATCH else []
    for name in ("query_prompt", "document_prompt"):
        words += [f"--{name.replace('_', '-')}", settings[name]] if settings.get(name) else []
    return shlex.join(map(str, words)) + " --trust-remote-code" * bool(asked["trust"])
