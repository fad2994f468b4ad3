"""A measured pair as a test sees it: how it is measured, judged, and reported when a test fails.

A pair is measured once, for all tests and processes that ask for the same. Runs lie in pytest's cache under their
fingerprint, or in a folder of the session if a later session could not trust them. A lock for each run lets one process
measure while the others wait for it.
"""

import functools
import json
import os
import platform
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from quantdrift.asking.ask import Ask, names_of, stamp_of
from quantdrift.asking.ensure import ensure
from quantdrift.base.display import clean, shown
from quantdrift.base.errors import QuantDriftError, RunError, UnknownNameError
from quantdrift.base.extras import extras_named
from quantdrift.base.progress import Silent
from quantdrift.base.records import Some, Whole, bytes_digest, file_digest, problem_of
from quantdrift.data.labelled import Dataset, load_task, read_folder
from quantdrift.data.retrieval import facts_of, keeping_own_ids
from quantdrift.data.tables import Columns, named_columns
from quantdrift.gate.baseline import Baseline, Snapshot
from quantdrift.gate.judge import gate, snapshot_for
from quantdrift.gate.output import headline, rules_table, sentences, subject, worst_table
from quantdrift.gate.result import ALPHA, GateResult
from quantdrift.gate.rules import Rule, RuleError, Slices, default_rules, parse_rule, slices_of
from quantdrift.gate.target import Target, target_of_run
from quantdrift.metrics import FAMILIES, parse_metric
from quantdrift.models.files.named import resolve
from quantdrift.models.inputs import Settings
from quantdrift.models.store import EmbeddingStore, default_store
from quantdrift.runs.changes import Changed, changed_inputs
from quantdrift.runs.folder import Run, read_run
from quantdrift.show.tables import Grid
from quantdrift.spec.grammar import Dtype, Spec, Versus, is_endpoint, parse_pair
from quantdrift.statistics.estimates import Estimate
from quantdrift_pytest.session import ASSERTED, Session, tersely


class UnderpoweredWarning(UserWarning):
    """Too few inputs to tell whether a rule holds, where the test accepts that."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drift:
    """A measured pair.

    Attributes:
        run: the run folder.
        target: its evidence, as the gate takes it.
        kept: whether it was measured before this test.
        session: the session that it belongs to.
    """

    run: Run
    target: Target = field(repr=False)
    kept: bool
    session: Session = field(repr=False)

    @property
    def spec(self) -> str:
        """The pair."""
        return str(self.target.identity.spec)

    @property
    def data(self) -> str:
        """Name of the data, with its split."""
        return self.target.identity.data_name

    @property
    def n_inputs(self) -> int:
        """Number of inputs."""
        return sum(evidence.n_inputs for evidence in self.target.evidence)

    @property
    def changed(self) -> list[Changed]:
        """The inputs whose top-1 changed; first those whose right answer became wrong."""
        return [changed for evidence in self.target.evidence for changed in changed_inputs(evidence)]

    @tersely
    def estimate(self, metric: str) -> Estimate:
        """Return a metric such as `gold_lost@10` with its 95 % interval, or the reason why it is undefined.

        Raises:
            UnknownNameError: there is no such metric; names the nearest ones.
            MetricError: it cannot be computed in this form.
        """
        __tracebackhide__ = True
        return parse_metric(metric).over(self.target.evidence)

    def value(self, metric: str) -> float | None:
        """Return the value of a metric, None if undefined; raises as `estimate`."""
        __tracebackhide__ = True
        return self.estimate(metric).value

    @tersely
    def check(self, **asked: Any) -> GateResult:
        """Judge the run without failing the test.

        Args:
            asked: rules, baseline, slices, alpha and limits, as for `assert_drift`.

        Raises:
            pytest.UsageError: nothing is asked.
            QuantDriftError: a rule or the baseline cannot be used.
        """
        __tracebackhide__ = True
        return judged(self, ask(self.session, **asked))

    @tersely
    def require(self, *, accept_underpowered: bool = False, **asked: Any) -> GateResult:
        """Assert that the run meets rules; arguments as of `check`.

        Raises:
            AssertionError: a rule does not hold, or cannot be judged; and the errors of `check`.
        """
        __tracebackhide__ = True
        return settle(self, ask(self.session, **asked), accept_underpowered=accept_underpowered)


MEASURED = pytest.StashKey[dict[str, Drift]]()
"""The measurements that this process has made or read, by fingerprint."""

# --- the question of a test -------------------------------------------------------------------


def limit_rule(name: str, value: object) -> Rule:
    """Return the rule of a keyword: a maximum if lower is better, else a minimum.

    >>> str(limit_rule("flip", 0.25)), str(limit_rule("change_ndcg_at_10", -0.02))
    ('flip@1 <= 0.25', 'change.ndcg@10 >= -0.02')
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RuleError(f"expected a number for the limit {name}, such as 0.25; got {value!r}")
    word, _, cutoff = name.partition("_at_")
    arm, _, rest = word.partition("_")
    # candidate_gap is a metric of its own
    arm, word = (f"{arm}.", rest) if word not in FAMILIES and arm in {"reference", "change", "relative"} else ("", word)
    if word not in FAMILIES:
        hint = f"(quantdrift list metrics shows all; a setting goes to settings={{{name!r}: ...}})"
        raise UnknownNameError("limit", name, FAMILIES, hint=hint)
    cutoffs = FAMILIES[word].cutoffs
    if cutoffs and not cutoff and 1 not in cutoffs:
        raise RuleError(f"the limit {name} needs a cut-off, such as {name}_at_{cutoffs[0]:g}=...")
    metric = parse_metric(f"{arm}{word}" + (f"@{cutoff or 1}" if cutoffs or cutoff else ""))
    if metric.direction == "none":
        raise RuleError(f"neither way is better for {metric}; write it as a rule: rules=['{metric} <= {value}']")
    return Rule(metric=metric, test="<=" if metric.direction == "lower" else ">=", number=float(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The question of a test: rules, and a baseline to compare with.

    Attributes:
        rules: limits and rules of the test.
        by_default: whether the default rules of a baseline are judged too.
        path: path of the baseline; None without one.
        baseline: content of the baseline; None without one, and where it is to be written.
        slices: slices of inputs by name.
        alpha: level of the tests.
    """

    rules: tuple[Rule, ...]
    by_default: bool
    path: Path | None
    baseline: Snapshot | None
    slices: Slices
    alpha: float


def ask(
    session: Session,
    *,
    rules: str | Rule | Iterable[str | Rule] = (),
    baseline: str | PathLike[str] | None = None,
    slices: Mapping[str, str | Sequence[str]] | None = None,
    alpha: float = ALPHA,
    **limits: object,
) -> Question:
    """Read and check the question of a test before anything is measured."""
    if session.item is None:
        raise pytest.UsageError("drift is asserted in tests and fixtures, not where a module is imported")
    several = (rules,) if isinstance(rules, str | Rule) else tuple(rules)
    ruled = tuple(rule if isinstance(rule, Rule) else parse_rule(rule) for rule in several)
    given = (*(limit_rule(name, value) for name, value in limits.items()), *ruled)
    if not given and baseline is None:
        raise pytest.UsageError("nothing is asked of the run; expected a limit such as flip=0.25, a baseline or rules")
    groups = slices_of(slices or {}, given)
    if comparing := [rule for rule in given if rule.compares and baseline is None]:
        raise RuleError(f"the rule '{comparing[0]}' needs a baseline, such as baseline=\"drift-baseline.json\"")
    path = None if baseline is None else session.config.rootpath / baseline
    stored: Snapshot | None = None
    if path is not None and session.config.getoption("quantdrift_update"):
        Baseline.check_place(path)
    elif path is not None and not path.exists():
        raise RunError(f"expected a baseline; {path} does not exist. Write it with pytest --quantdrift-update")
    elif path is not None:
        stored = Baseline.read(path).snapshot()
    by_default = path is not None and not ruled
    return Question(rules=given, by_default=by_default, path=path, baseline=stored, slices=groups, alpha=alpha)


# --- the verdict ------------------------------------------------------------------------------


def judged(drift: Drift, question: Question) -> GateResult:
    """Judge a run; only limits are judged where its baseline is to be written."""
    rules = [*question.rules, *(default_rules(drift.target) if question.by_default else ())]
    if question.path is not None and question.baseline is None:
        # plain values, for the process that writes baselines
        update = {"path": str(question.path), "run": str(drift.run.path), "rules": [str(rule) for rule in rules]}
        _note(drift, passed=True, line="", update=update)
        rules = [rule for rule in rules if not rule.compares]
    return gate(drift.target, rules, question.baseline, slices=question.slices, alpha=question.alpha)


def settle(drift: Drift, question: Question, *, accept_underpowered: bool) -> GateResult:
    """Judge and record; fail unless the verdict is "pass", or too few inputs are accepted."""
    __tracebackhide__ = True
    result = replace(judged(drift, question), accept_underpowered=accept_underpowered)
    item = drift.session.item
    assert item is not None  # without one `ask` has refused the question
    how = "measured before" if drift.kept else "measured now"
    line = (
        f"{item.nodeid}: {shown(drift.spec)} on {shown(drift.data)} ({how}): {result.n_changed:,} of "
        f"{result.n_inputs:,} top-1 answers changed; {result.verdict}"
    )
    _note(drift, passed=result.exit_code == 0, line=line, update=None)
    # properties for JUnit: pair, data, verdict and main metrics
    properties = {"spec": drift.spec, "data": drift.data, "verdict": result.verdict, "n_inputs": drift.n_inputs}
    for name in ("flip@1", "noise_floor", "gold_lost@10", "ndcg@10", "accuracy"):
        value = drift.run.record.get("metrics", {}).get(name, {}).get("value")
        properties |= {} if value is None else {name: value}
    item.user_properties += [(f"quantdrift.{name}", value) for name, value in properties.items()]
    if result.accepted:
        warnings.warn(clean(f"{drift.spec} on {drift.data}: {headline(result)}"), UnderpoweredWarning, stacklevel=3)
    elif result.verdict != "pass":
        raise AssertionError(failure_text(result))
    return result


def failure_text(result: GateResult) -> str:
    """Return the verdict, the rules as a table, what to do, and the changed inputs."""
    parts = [_here(headline(result)), subject(result), "", *_table(rules_table(result)), ""]
    parts += [_here(line) for line in sentences(result)]
    if result.worst:
        parts += ["", worst_table(result).title, *_table(worst_table(result))]
    return "\n".join(parts)


def _here(line: str) -> str:
    """Replace the options in a sentence of `quantdrift gate` by those of pytest."""
    line = line.replace("--accept-underpowered", "accept_underpowered=True")
    return line.replace("--update", "pytest --quantdrift-update")


def _table(grid: Grid) -> list[str]:
    """Return a table as plain text with two spaces between columns."""
    lines = [grid.head, *grid.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    ]


def _note(drift: Drift, **asserted: Any) -> None:
    assert drift.session.item is not None  # as above
    drift.session.item.stash[ASSERTED].append(asserted)


# --- baselines that tests name, written at the end of a session by one process ----------------


def write_asked(session: Session, *, broken_off: bool) -> tuple[list[str], bool]:
    """Write every baseline that a test has named, unless the session was broken off."""
    by_path: dict[str, list[dict[str, Any]]] = {}
    for asserted in session.asserted:
        if update := asserted["update"]:
            by_path.setdefault(update["path"], []).append(update)
    if broken_off and by_path:
        return ["no baseline was written: the session was broken off"], False
    lines, whole = [], True
    for place, updates in sorted(by_path.items()):
        path = Path(place)
        root = session.config.rootpath
        name = path.relative_to(root) if path.is_relative_to(root) else path
        try:
            lines.append(f"wrote {name}: {_write(path, updates)}; commit it")
        except QuantDriftError as error:
            lines.append(f"{name} was not written: {error}")
            whole = False
    return lines, whole


def _write(path: Path, updates: Sequence[dict[str, Any]]) -> str:
    """Write one baseline with the rules of all tests that name it."""
    targets = [target_of_run(read_run(run)) for run in sorted({update["run"] for update in updates})]
    whose = " and ".join(f"{target.identity.spec} on {target.identity.data_name}" for target in targets)
    if len(targets) > 1:
        raise RunError(f"tests name it for more than one run ({whose}); give each run a file of its own")
    rules = dict.fromkeys(rule for update in updates for rule in update["rules"])
    earlier = None
    with suppress(RunError):  # none, or a damaged one
        earlier = Baseline.read(path).snapshot()
    snapshot = snapshot_for(targets[0], [parse_rule(rule) for rule in rules], earlier)
    Baseline.of(snapshot).write(path)
    return f"{whose}, {snapshot.n_inputs:,} inputs"


# --- the request to measure -------------------------------------------------------------------


class Measuring(BaseModel, strict=True, frozen=True, extra="forbid"):
    """The settings of a measurement, as of `quantdrift run`."""

    k: Some = 200
    batch_size: Some = 32
    noise_floor: bool = True
    seed: Whole = 0
    device: str | None = None
    revision: str | None = None
    dtype: Dtype = "float32"
    keep_own_ids: bool = False
    query_prompt: str | None = None
    document_prompt: str | None = None


def read_settings(given: Mapping[str, Any]) -> Measuring:
    """Return the checked settings."""
    try:
        return Measuring(**given)
    except ValidationError as error:
        names = ", ".join(Measuring.model_fields)
        raise QuantDriftError(f"the setting {problem_of(error)}. Settings are {names}; limits go to require") from error


@functools.cache
def content_digest(place: Path, stamp: str) -> str:
    """Return a digest of the names and contents of files, which a copy shares; taken once per `stamp`.

    Hidden files do not count, as they change without the content.
    """
    del stamp
    files = [place] if place.is_file() else [file for file in place.rglob("*") if not file.is_dir()]
    names = sorted(file.relative_to(place).as_posix() for file in files)
    shown = [name for name in names if not re.search(r"(^|/)\.[^/]", name)]
    return bytes_digest(json.dumps([[name, file_digest(place / name)] for name in shown]).encode())


def asked(pair: Spec | Versus, dataset: Dataset, how: Measuring) -> Ask:
    """Return the request to measure; models count by the content of their files, and another machine is another one."""
    models = [_model(name, None if number else how.revision) for number, name in enumerate(names_of(pair))]
    gpus = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    # what decides the device of a model
    part = ["machine", platform.system(), platform.machine(), *gpus, os.environ.get("CUDA_VISIBLE_DEVICES", "all")]
    data, settings = facts_of(dataset), how.model_dump()
    return Ask(pair=pair, data=data, settings=settings, part=part, models=models, dataset=dataset)


def _model(name: str, revision: str | None) -> str | None:
    """Return a digest of a model's files; None where they lie elsewhere."""
    if is_endpoint(name):
        return None
    if name.lower().endswith(".gguf"):
        place, on_hub = Path(name).expanduser(), name.rpartition(":")[0]
        folder = place if place.is_file() else _downloaded(on_hub, revision)
    else:
        source = resolve(name)
        folder = _downloaded(source.canonical, revision) if source.kind == "hub" else Path(source.location)
    return None if folder is None else content_digest(folder, stamp_of(str(folder)))


def _downloaded(repo: str, revision: str | None) -> Path | None:
    """Return the snapshot of a hub model on this machine; None without one."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415 -- only for hub models
    from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415 -- likewise

    folder = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
    try:
        return Path(snapshot_download(repo, revision=revision, cache_dir=folder, local_files_only=True))
    except (LocalEntryNotFoundError, ValueError):  # not here, or no such name
        return None


# --- measured once, and read afterwards -------------------------------------------------------


def read_data(
    session: Session, *, data: str | PathLike[str] | None, columns: Columns | None = None, task: str | None, split: str
) -> Dataset:
    """Return the data, which are read once per session unless their files change."""
    if (data is None) == (task is None):
        got = "neither" if data is None else "both"
        raise pytest.UsageError('expected either data="FOLDER" or task="NAME" (quantdrift list tasks); got ' + got)
    if columns is not None and task is not None:
        raise pytest.UsageError("columns are of a table, data=FILE; leave them out")
    folder = session.config.rootpath / (data or "")
    stamp = stamp_of(str(folder)) if data is not None and folder.exists() else ""
    name = (task, folder, named_columns(columns), split, stamp)
    if name not in session.data:
        session.data[name] = read_folder(folder, split, columns) if task is None else load_task(task)
    return session.data[name]


def measured(session: Session, spec: str, settings: Mapping[str, Any], **place: Any) -> Drift:
    """Return the measurement of a pair, made now or read back; `place` names the data, as for `read_data`."""
    pair, how = parse_pair(spec), read_settings(settings)
    dataset = keeping_own_ids(read_data(session, **place), how.keep_own_ids)
    try:
        request = asked(pair, dataset, how)
        name = request.fingerprint
    except OSError as error:
        raise RunError(f"the files of {pair} cannot be read: {error}") from error
    known = session.config.stash.setdefault(MEASURED, {})
    if name in known:
        return known[name]
    anew = bool(session.config.getoption("quantdrift_no_cache"))
    # models on a hub or a server may be others in the next session
    path = session.folder("runs", lasting=request.certain and not anew) / name
    with extras_named(needed_for="measuring in pytest", extra="pytest"):
        from filelock import FileLock  # noqa: PLC0415 -- only the extra brings it
    taken = []
    with FileLock(path.with_name(f"{name}.lock")), warnings.catch_warnings():
        # a suite may turn warnings into errors; those of loading libraries are no concern of its tests
        warnings.simplefilter("ignore")
        run = ensure(
            request,
            path,
            settings=Settings(**how.model_dump(exclude={"device", "revision", "keep_own_ids"})),
            store=EmbeddingStore(None) if anew else default_store(),
            progress=Silent(),
            device=how.device,
            revision=how.revision,
            reuse=True,  # runs of models that may change unseen last as long as the session
            found=lambda: taken.append(name),
        )
    drift = Drift(run=run, target=target_of_run(run), kept=bool(taken), session=session)
    known[name] = replace(drift, kept=True)  # for the tests that ask next
    return drift
