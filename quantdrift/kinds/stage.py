"""What a candidate may differ in from its reference: one stage a module, or an entry point of another package.

A stage says here how it is written in a scheme, what it refuses, and what a run says of it, all without torch. What it
does is a class in its `work`: of `candidate.stages.ModelStage` where it changes the model, of
`scoring.stages.VectorStage` where it lies between embeddings and what a search returns.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from quantdrift.base.registry import Package, Registry, imported
from quantdrift.scheme import Scheme

Kind = Literal["layers", "model", "vectors"]
"""What a stage changes: the linear layers, which the bits of a scheme name; the rest of a model; or a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """How `+KEY=VALUE` is written.

    Attributes:
        pattern: regular expression that a value must match in full.
        values: what is expected, in words, for error messages.
        sets_batches: whether the option says how inputs form batches, which only `quantdrift run` controls.
        trial_values: the values to try for somebody who asks what the option changes.
        bare_value: the value of `+KEY` without one; empty where a value has to be given.
    """

    pattern: str = ".+"
    values: str = "its value"
    sets_batches: bool = False
    trial_values: tuple[str, ...] = ()
    bare_value: str = ""

    def __post_init__(self) -> None:
        re.compile(self.pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What makes a stage change fewer answers.

    Attributes:
        what: what to do, in one sentence.
        scheme: the scheme to run instead; None for the scheme as it is.
        command: the command of quantdrift that takes this scheme; empty where none helps.
    """

    what: str
    scheme: Scheme | None = None
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One thing that a candidate differs in.

    Attributes:
        what: what the stage is, for lists.
        kind: what the stage changes.
        options: the options of a scheme that belong to it, by key.
        place: its position in a deployment; lower comes first.
        work: "module:Class" of the class that does the work, loaded when it is needed; empty where the pair itself
            does it.
        is_present: whether a scheme has the stage; by default it has when one of `options` is named.
        absent_fields: the values of a scheme's fields that leave the stage out, beside its options.
        check: returns why the stage would have no effect in a scheme, or None. It reads the scheme alone.
        refuse: raises where the stage cannot be made. It may ask a library, and runs before anything is loaded.
        in_waterfall: whether the stage changes answers by itself, so that a waterfall gives it a share.
        uses_seed: whether `+seed=` changes the stage.
        calibrates: whether the candidate of a scheme needs inputs for it.
        depends_on_batch: whether the result for an input can depend on the other inputs of its batch. The candidate
            is then run a second time to measure its own noise.
        before_layers: whether the stage is in place while linear layers are calibrated.
        reproducible: whether the scheme decides all that the stage does. A collection on a server may change unseen.
        stores_codes: whether stored embeddings or an index hold codes, whose loss rescoring mends.
        vector_bits: bits of one number of a stored embedding; None leaves them as they are.
        repair_options: the options that `repair` tries.
        slow_repair_options: further options that `repair --thorough` tries.
        formats: the formats of saved candidates that can carry the stage.
        packages: the packages that do the work.
        needs: names of the packages that a scheme chooses among these.
        advice: what to do where the stage changes too many answers; None where nothing is known.
        versions: versions of other packages whose parts a scheme chooses.
        record_key: the key of "quantization" in run.json under which the stage is described; empty for none.
        run_lines: what a run says of the stage, given the value under `record_key`.
    """

    what: str
    kind: Kind
    options: Mapping[str, Option] = field(default_factory=dict)
    place: int = 100
    work: str = ""
    is_present: Callable[[Scheme], bool] | None = None
    absent_fields: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[Scheme], str | None] = lambda _: None
    refuse: Callable[[Scheme], None] = lambda _: None
    in_waterfall: bool = True
    uses_seed: bool = False
    calibrates: Callable[[Scheme], bool] = lambda _: False
    depends_on_batch: Callable[[Scheme], bool] = lambda _: False
    before_layers: bool = False
    reproducible: bool = True
    stores_codes: Callable[[Scheme], bool] = lambda _: False
    vector_bits: Callable[[Scheme], int | None] = lambda _: None
    repair_options: tuple[Mapping[str, str], ...] = ()
    slow_repair_options: tuple[Mapping[str, str], ...] = ()
    formats: tuple[str, ...] = ()
    packages: tuple[Package, ...] = ()
    needs: Callable[[Scheme], Iterable[str]] = lambda _: ()
    advice: Callable[[Scheme], Advice | None] = lambda _: None
    versions: Callable[[Scheme], Mapping[str, str]] = lambda _: {}
    record_key: str = ""
    run_lines: Callable[[Mapping[str, Any]], Iterable[str]] = lambda _: ()

    def in_(self, scheme: Scheme) -> bool:
        """Whether a scheme has it."""
        return (
            any(key in self.options for key, _ in scheme.options)
            if self.is_present is None
            else self.is_present(scheme)
        )

    def make(self, *arguments: Any) -> Any:
        """Make the object that does the stage's work for one candidate."""
        return imported(self.work)(*arguments)


def _taken(stages: Mapping[str, Stage], stage: Stage) -> str | None:
    taken = {"calib", "head", "layers", "seed", "query", *(key for other in stages.values() for key in other.options)}
    return next((f"there is an option +{key}= already" for key in stage.options if key in taken), None)


STAGES: Registry[Stage] = Registry(
    "quantdrift.stages",
    package=("quantdrift.builtin", "quantdrift.features"),
    attribute="STAGE",
    kind=Stage,
    clash=_taken,
)
"""All stages by name, in the order of a deployment."""
