"""study.yaml: the models, schemes, data and seeds of a study, and its cells."""

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    InstanceOf,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from quantdrift.base.display import clean
from quantdrift.base.errors import SpecError, StudyError
from quantdrift.base.records import AS_LIST, MAX_DEPTH, Some, Whole, problem_of, read_bytes
from quantdrift.data.labelled import is_place
from quantdrift.data.streamed import is_url
from quantdrift.finished.shortlist import FIRST
from quantdrift.scheme import Scheme
from quantdrift.spec.grammar import Dtype, Spec, draws, parse, parse_scheme
from quantdrift.study.grid import CaptureGrid, HeldOut, Part, known_name

_LARGEST = 1 << 20
"""Largest study.yaml in bytes."""
MOST_CELLS = 100_000

# --- the file -------------------------------------------------------------------------------------


def _checked(text: str) -> str:
    try:
        parse_scheme(text)
    except SpecError as error:
        raise ValueError(str(error)) from error  # as pydantic wants it
    return text


SchemeText = Annotated[str, AfterValidator(_checked)]
"""A scheme, as text that parses."""


class CellSettings(Part):
    """The settings of cells, as options of `quantdrift run`, and queries to hold out; None for the default."""

    k: Some | None = None
    batch_size: Some | None = None
    noise_floor: bool | None = None
    device: str | None = None
    dtype: Dtype | None = None
    trust_remote_code: bool | None = None
    query_prompt: str | None = None
    document_prompt: str | None = None
    held_out: HeldOut | None = None

    def over(self, other: "CellSettings") -> "CellSettings":
        """Return these settings, completed by others."""
        return CellSettings.model_validate({**other.said(), **self.said()})

    def said(self) -> dict[str, Any]:
        """Return the settings that are not None."""
        return self.model_dump(exclude_none=True)


class ModelEntry(Part):
    """A model, as in a spec, and the `name` that cells have for it.

    `{data}` in a model stands for the name of the data, such as for checkpoints that are fine-tuned to each.
    """

    model: str
    name: str = ""
    settings: CellSettings = CellSettings()

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"model": value} if isinstance(value, str) else value

    @property
    def called(self) -> str:
        """The model's name in cells."""
        is_place = self.model.startswith((".", "~", "/"))
        return self.name or (Path(self.model).name if is_place else self.model)


class DataEntry(Part):
    """A folder, a task of quantdrift or one of mteb; a plain text is a folder if there is one, else a task.

    With `retriever`, models are cross-encoders and rerank its first `top` documents, found at full precision.
    With `neighbours`, every input of labelled data searches all others.
    With `sizes`, growing parts of the corpus are searched, each as an entry of its own.
    With `limit`, only the first queries or inputs are used, for a quick try.
    With `keep_own_ids`, queries that are documents too find themselves.
    With `columns`, the folder is a table with these columns.
    """

    folder: str | None = None
    task: str | None = None
    mteb: str | None = None
    split: str = "test"
    columns: str | None = None
    subset: str | None = None
    retriever: str | None = None
    top: Some = FIRST
    neighbours: bool = False
    sizes: Annotated[tuple[Whole | str, ...], AS_LIST] = ()
    limit: Some | None = None
    keep_own_ids: bool = False
    name: str = ""
    settings: CellSettings = CellSettings()

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, str):
            return value
        return {"folder" if is_place(value, info.context or Path()) else "task": value}

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if [self.folder, self.task, self.mteb].count(None) != 2:  # noqa: PLR2004 -- all but one
            raise ValueError("expected one of folder, task and mteb")
        if self.subset is not None and self.mteb is None:
            raise ValueError("a subset is of a task of mteb")
        if self.neighbours and self.retriever is not None:
            raise ValueError("neighbours are of labelled data, a retriever of a search; expected one of the two")
        if self.sizes and self.retriever is not None:
            raise ValueError("sizes are of a corpus that is searched, and shortlists are not; leave one of the two out")
        numbers = self.sizes[:-1] if self.sizes[-1:] == ("all",) else self.sizes
        whole = [size for size in numbers if isinstance(size, int) and size > 0]
        if len(whole) < len(numbers) or whole != sorted(set(whole)):
            raise ValueError(f"expected sizes that rise, such as [250, 1000, all]; got {[*self.sizes]}")
        return self

    @property
    def of_sizes(self) -> tuple[Self, ...]:
        """An entry for each size; only the largest measures the noise floor."""
        quiet = CellSettings(noise_floor=False).over(self.settings)
        return tuple(
            self.model_copy(update={"sizes": (size,), "settings": self.settings if size == self.sizes[-1] else quiet})
            for size in self.sizes
        ) or (self,)

    @property
    def whole(self) -> Self:
        """The entry of the whole data, without sizes and settings."""
        return self.model_copy(update={"sizes": (), "settings": CellSettings()})

    @property
    def corpus(self) -> str:
        """The data's name in cells, without a size."""
        return self.name or (f"{self.plain}-self" if self.neighbours else self.plain)

    @property
    def plain(self) -> str:
        """The name of the folder or task."""
        plain = Path(self.folder).name if self.folder else str(self.task or self.mteb)
        return plain if self.subset is None else f"{plain}-{self.subset}"

    @property
    def called(self) -> str:
        """The data's name in cells."""
        first = [] if self.limit is None else [f"first{self.limit}"]
        return "-".join([self.corpus, *map(str, self.sizes), *first])


class Row(Part):
    """Cells of a model, a scheme and data by name; in `exclude`, * stands for anything."""

    model: str | None = None
    scheme: str | None = None
    data: str | None = None


class Included(Row):
    """Additional cells of a scheme; model and data may be left out."""

    scheme: SchemeText


def _of_sizes(data: list[DataEntry]) -> list[DataEntry]:
    return [sized for entry in data for sized in entry.of_sizes]


def _once(seeds: list[int]) -> list[int]:
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ValueError("expected whole numbers of 0 or more, each once")
    return seeds


class Study(Part):
    """The content of study.yaml; `shows` names tables of the paper that it measures."""

    models: list[ModelEntry] = Field(min_length=1)
    schemes: list[SchemeText] = Field(default=[])
    data: Annotated[list[DataEntry], Field(min_length=1), AfterValidator(_of_sizes)]
    seeds: Annotated[list[Whole], Field(min_length=1), AfterValidator(_once)] = Field([0])
    capture: CaptureGrid | None = None
    settings: CellSettings = CellSettings()
    include: list[Included] = Field(default=[])
    exclude: list[Row] = Field(default=[])
    shows: list[str] = Field(default=[])

    @model_validator(mode="after")
    def _can_be_planned(self) -> Self:
        if self.capture is None and not self.schemes:
            raise ValueError("schemes: expected at least one")
        if self.capture is not None and any(entry.sizes for entry in self.data):
            raise ValueError("capture is measured on whole corpora; leave sizes out of data, or make two studies")
        names = {"model": [entry.called for entry in self.models], "data": [entry.called for entry in self.data]}
        for what, called in names.items():
            if twice := _twice(called):
                raise ValueError(f"two {what} entries are called {twice}; give one of them a name")
            for row in (*self.include, *self.exclude):
                pattern = getattr(row, what)
                if pattern is not None and not any(fnmatchcase(name, pattern) for name in called):
                    known_name(what, pattern, called)
        return self


def read_study(path: Path) -> Study:
    """Read and check a study.yaml; its folders are relative to its own.

    Raises:
        StudyError: it cannot be read or is no study; names the line or the key.
    """
    return study_of(loaded_yaml(path), path, folder=path.absolute().parent)


def study_of(value: Any, path: Path, *, folder: Path) -> Study:
    """Return the checked study of a YAML value.

    Raises:
        StudyError: it is no study.
    """
    if not isinstance(value, dict):
        raise StudyError(f"{path}: expected models, schemes and data, a list each")
    try:
        return _from(Study.model_validate(value, context=folder), folder)
    except ValidationError as error:
        raise StudyError(f"{path}: {clean(problem_of(error))}") from error


class _Loader(yaml.SafeLoader):
    """YAML without aliases, which could grow without end, duplicate keys and deep nesting.

    Dates remain texts: a folder may be called 2026-01-01.
    """

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node, or refuse it."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise ComposerError(None, None, f"expected no alias (*{event.anchor})", event.start_mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ComposerError(None, None, f"nested deeper than {MAX_DEPTH} levels", event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Construct a mapping, or refuse it."""
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise ConstructorError(None, None, f"{str(key.value)[:60]!r} occurs twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def loaded_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        StudyError: it cannot be read, is no YAML, or is too large.
    """
    try:
        return yaml.load(read_bytes(path, limit=_LARGEST).decode("utf-8-sig"), Loader=_Loader)
    except OSError as error:
        raise StudyError(f"{path} cannot be read: {error.strerror}; expected a study.yaml") from error
    except yaml.MarkedYAMLError as error:
        line = 0 if error.problem_mark is None else error.problem_mark.line + 1
        raise StudyError(f"{path}, line {line}: this is not YAML of a study: {clean(str(error.problem))}") from error
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise StudyError(f"{path}: expected a study.yaml, in UTF-8; {clean(str(error))[:200]}") from error


def _from(study: Study, folder: Path) -> Study:
    """Return the study with absolute folders, and with the schemes of a capture study."""

    def whole(name: str) -> str:
        return name if is_url(name) else str((folder / Path(name).expanduser()).resolve())

    def placed(model: str | None) -> str | None:
        is_folder = model and (model.startswith((".", "~")) or (folder / model).is_dir())
        return whole(model) if model and is_folder else model

    models = [entry.model_copy(update={"model": placed(entry.model), "name": entry.called}) for entry in study.models]
    data = [
        entry.model_copy(update={"folder": entry.folder and whole(entry.folder), "retriever": placed(entry.retriever)})
        for entry in study.data
    ]
    placed_study = study.model_copy(update={"models": models, "data": data})
    if study.capture is None:
        return placed_study
    capture = study.capture.model_copy(update={"seeds": study.capture.seeds or study.seeds})
    more = {
        "schemes": list(dict.fromkeys([*study.schemes, *map(str, capture.schemes())])),
        "seeds": capture.seeds,
        "capture": capture,
        "settings": study.settings.over(CellSettings(held_out=HeldOut())),
    }
    return placed_study.model_copy(update=more)


# --- its cells ------------------------------------------------------------------------------------


class Cell(Part):
    """One run of a study, as study.json has it.

    Attributes:
        name: name of its run folder.
        spec: the pair.
        model: the model's name in the study.
        data: the data.
        settings: settings of the measurement.
        fingerprint: fingerprint that its run must have; None if model or data cannot be found.
    """

    name: str
    spec: Annotated[
        InstanceOf[Spec],
        BeforeValidator(lambda spec: parse(spec) if isinstance(spec, str) else spec),
        PlainSerializer(str),
    ]
    model: str
    data: DataEntry
    settings: CellSettings
    fingerprint: str | None = None


def cells_of(study: Study) -> tuple[Cell, ...]:
    """Return all cells, those of one model and one corpus in a row.

    Raises:
        StudyError: there is none, or there are more than MOST_CELLS.
    """
    cells: dict[tuple[str, str, str], Cell] = {}
    size = len(study.models) * len(study.data) * (len(study.schemes) + len(study.include)) * len(study.seeds)
    if size > MOST_CELLS:
        raise StudyError(f"the study has {size:,} cells; expected at most {MOST_CELLS:,}. Split it")
    for model in study.models:
        for data in study.data:
            schemes = [scheme for scheme in study.schemes if not _matches(study.exclude, model, scheme, data)]
            schemes += [
                row.scheme for row in study.include if _matches([Row(model=row.model, data=row.data)], model, "", data)
            ]
            settings = data.settings.over(model.settings.over(study.settings))
            for scheme in schemes:
                for seeded in _seeded(scheme, study.seeds):
                    key = model.called, str(seeded), data.called
                    spec = Spec(model=model.model.replace("{data}", data.plain), scheme=seeded)
                    name = "{}@{}_on_{}".format(*map(_slug, key))
                    cells[key] = Cell(name=name, spec=spec, model=model.called, data=data, settings=settings)
    if not cells:
        raise StudyError("the study has no cells: everything is excluded")
    if twice := _twice([cell.name for cell in cells.values()]):
        raise StudyError(f"two cells would lie in one folder, {twice}; give models or data names that files can have")
    return tuple(cells.values())


def _matches(rows: Sequence[Row], model: ModelEntry, scheme: str, data: DataEntry) -> bool:
    def fits(pattern: str | None, *names: str) -> bool:
        return pattern is None or any(fnmatchcase(name, pattern) for name in names)

    return any(
        fits(row.model, model.called, model.model)
        and fits(row.scheme, scheme, *([str(parse_scheme(scheme))] if scheme else []))
        and fits(row.data, data.called)
        for row in rows
    )


def _seeded(text: str, seeds: Sequence[int]) -> Iterator[Scheme]:
    """Yield a scheme with every seed if it draws anything; seed 0 is not written."""
    scheme = parse_scheme(text)
    drawn = draws(scheme) and scheme.option("seed") is None
    for seed in seeds if drawn else [0]:
        yield parse_scheme(f"{text}+seed={seed}") if seed else scheme


def _twice(names: Sequence[str]) -> str | None:
    """Return a name that occurs more than once, if any."""
    return next((name for name, n in Counter(names).items() if n > 1), None)


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=+-]+", "_", text).strip("._") or "cell"
