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
        pattern: regular expression of the values.
        values: the same in words.
        batches: whether it says how inputs are put together, which only `quantdrift run` does itself.
        usual: values that are tried where somebody asks what this option changes.
        alone: the value of `+KEY` without one; empty where a value has to be given.
    """

    pattern: str = ".+"
    values: str = "its value"
    batches: bool = False
    usual: tuple[str, ...] = ()
    alone: str = ""

    def __post_init__(self) -> None:
        re.compile(self.pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mend:
    """What makes a stage change fewer answers.

    Attributes:
        what: in a sentence.
        scheme: that does it; None for the scheme as it is.
        command: of quantdrift that is given that scheme; empty where none helps.
    """

    what: str
    scheme: Scheme | None = None
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One thing that a candidate differs in.

    Attributes:
        what: in words, for lists.
        kind: what it changes.
        options: of a scheme, by key.
        place: in the order of a deployment, ascending.
        work: "module:Class" that does it, loaded when it is needed; empty where the pair itself does.
        present: whether a scheme has it; one of its options is named if None.
        without: fields of a scheme that leave it out, beside its options.
        check: why what a scheme says of it would have no effect; None where it has one. It reads the scheme alone.
        refuse: raises where it cannot be made; it may ask a library, and runs before anything is loaded.
        shares: whether it changes answers by itself, so that a waterfall gives it a share.
        draws: whether `+seed=` changes it.
        calibrates: whether a scheme's candidate needs inputs for it.
        by_batch: whether what it makes of an input can depend on what else is in the batch; the candidate is then run
            again for its own noise.
        under_layers: whether linear layers are calibrated with it in place.
        settled: whether its scheme decides what it does; a collection that is there may change unseen.
        codes: whether stored embeddings or an index hold codes, whose loss rescoring mends.
        vector_bits: of a number of a stored embedding; None where it leaves that as it is.
        tried: options that `repair` tries.
        thorough: options that `repair --thorough` tries besides, which take long.
        formats: of saved candidates that can carry it.
        packages: that do it.
        stands_on: names of packages, of those that a scheme chooses from.
        mend: what to do where it changes too many answers; None where nothing is known.
        brought: versions of other packages that bring what a scheme chooses from.
        part: of "quantization" in run.json that is about it, by key; empty where there is none.
        lines: what a run says of it, from that part.
    """

    what: str
    kind: Kind
    options: Mapping[str, Option] = field(default_factory=dict)
    place: int = 100
    work: str = ""
    present: Callable[[Scheme], bool] | None = None
    without: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[Scheme], str | None] = lambda _: None
    refuse: Callable[[Scheme], None] = lambda _: None
    shares: bool = True
    draws: bool = False
    calibrates: Callable[[Scheme], bool] = lambda _: False
    by_batch: Callable[[Scheme], bool] = lambda _: False
    under_layers: bool = False
    settled: bool = True
    codes: Callable[[Scheme], bool] = lambda _: False
    vector_bits: Callable[[Scheme], int | None] = lambda _: None
    tried: tuple[Mapping[str, str], ...] = ()
    thorough: tuple[Mapping[str, str], ...] = ()
    formats: tuple[str, ...] = ()
    packages: tuple[Package, ...] = ()
    stands_on: Callable[[Scheme], Iterable[str]] = lambda _: ()
    mend: Callable[[Scheme], Mend | None] = lambda _: None
    brought: Callable[[Scheme], Mapping[str, str]] = lambda _: {}
    part: str = ""
    lines: Callable[[Mapping[str, Any]], Iterable[str]] = lambda _: ()

    def in_(self, scheme: Scheme) -> bool:
        """Whether a scheme has it."""
        return any(key in self.options for key, _ in scheme.options) if self.present is None else self.present(scheme)

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
