"""Stages: the things in which a candidate may differ from its reference; each is a module or an entry point.

The description of a stage, without torch, has its options in a scheme, its refusals and its lines about a run. A class
in its `work` does the work: a `candidate.stages.ModelStage` changes the model, a `scoring.stages.VectorStage` acts
between embeddings and search results.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from quantdrift.base.registry import Package, Registry, imported
from quantdrift.scheme import Scheme

Kind = Literal["layers", "model", "vectors"]
"""The target of a stage: the linear layers (as the bits of a scheme), the rest of a model, or a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The syntax of `+KEY=VALUE`.

    Attributes:
        pattern: regular expression that a value must match in full.
        values: the possible values in words, for error messages.
        sets_batches: whether the option sets how inputs form batches, which only `quantdrift run` controls.
        bare_value: the value that `+KEY` alone stands for; empty if a value is required.
    """

    pattern: str = ".+"
    values: str = "its value"
    sets_batches: bool = False
    bare_value: str = ""

    def __post_init__(self) -> None:
        re.compile(self.pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice that makes a stage change fewer answers.

    Attributes:
        what: the advice, in one sentence.
        scheme: the scheme to run instead; None for the scheme as it is.
        command: the command of quantdrift to give this scheme to; empty if none helps.
    """

    what: str
    scheme: Scheme | None = None
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One thing that a candidate differs in.

    Attributes:
        what: description of the stage, for lists.
        kind: target of the stage.
        options: the options of a scheme that belong to it, by key.
        place: its position in a deployment; lower comes first.
        work: "module:Class" of the class that does the work, loaded when needed; empty if the pair itself does it.
        is_present: says whether a scheme has the stage; by default whether it has one of `options`.
        absent_fields: the values of a scheme's fields that leave the stage out, beside its options.
        check: returns why the stage would have no effect in a scheme, or None. It reads the scheme alone.
        refuse: raises if the stage cannot be made. It may ask a library, and runs before anything is loaded.
        in_waterfall: whether the stage changes answers by itself, so that a waterfall gives it a share.
        uses_seed: whether `+seed=` changes the stage.
        calibrates: whether the candidate of a scheme needs inputs for it.
        depends_on_batch: whether the result for an input can depend on the other inputs of its batch. The candidate
            is then run a second time to measure its own noise.
        before_layers: whether the stage is in place while linear layers are calibrated.
        reproducible: whether the scheme alone decides the result. A collection on a server may change unnoticed.
        passes: the forward passes of single inputs that making it takes, from the scheme, the number of inputs that it
            may draw from, and that of linear layers; a backward pass counts as two. A forecast tells their time.
        memory: the bytes of memory that making it takes, from the scheme and the number of linear weights.
        stores_codes: whether stored embeddings or an index hold codes, whose error rescoring reduces.
        repair_options: the options that `repair` tries beside other weights.
        slow_repair_options: further options that `repair --thorough` tries.
        remedies: returns the schemes that `repair` tries in place of one whose answers the stage changes, or could
            mend: the same with other options.
        can_save: whether the weights of a saved candidate can carry the stage.
        packages: the packages that do the work.
        needs: names of the packages among these that a scheme needs.
        advice: advice for a stage that changes too many answers; None if there is none.
        versions: versions of the other packages whose parts a scheme uses.
        record_key: the key of "quantization" in run.json under which the stage is described; empty for none.
        run_lines: lines about the stage in a run's output, from the value under `record_key`.
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
    passes: Callable[[Scheme, int, int], float] = lambda *_: 0.0
    memory: Callable[[Scheme, int], float] = lambda *_: 0.0
    stores_codes: Callable[[Scheme], bool] = lambda _: False
    repair_options: tuple[Mapping[str, str], ...] = ()
    slow_repair_options: tuple[Mapping[str, str], ...] = ()
    remedies: Callable[[Scheme], Iterable[Scheme]] = lambda _: ()
    can_save: bool = False
    packages: tuple[Package, ...] = ()
    needs: Callable[[Scheme], Iterable[str]] = lambda _: ()
    advice: Callable[[Scheme], Advice | None] = lambda _: None
    versions: Callable[[Scheme], Mapping[str, str]] = lambda _: {}
    record_key: str = ""
    run_lines: Callable[[Mapping[str, Any]], Iterable[str]] = lambda _: ()

    def in_(self, scheme: Scheme) -> bool:
        """Whether a scheme has the stage."""
        if self.is_present is not None:
            return self.is_present(scheme)
        return any(key in self.options for key, _ in scheme.options)

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
