"""study.yaml: the models, schemes, data and seeds of a study, and the cells that they come to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from quantdrift.base.display import clean
from quantdrift.base.errors import SpecError, StudyError, nearest
from quantdrift.base.records import AS_LIST, MAX_DEPTH, open_file
from quantdrift.data.streamed import is_url
from quantdrift.finished.shortlist import FIRST
from quantdrift.spec.grammar import Dtype, Scheme, Spec, draws, parse
from quantdrift.study.grid import CaptureGrid, HeldOut

_LARGEST = 1 << 20
"""Bytes of a study.yaml."""
MOST_CELLS = 100_000

# --- the file -------------------------------------------------------------------------------------


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class CellSettings(_Part):
    """How cells are measured: the options of `quantdrift run`, and queries to hold out; None where nothing is said."""

    k: int | None = Field(default=None, ge=1)
    batch_size: int | None = Field(default=None, ge=1)
    noise_floor: bool | None = None
    device: str | None = None
    dtype: Dtype | None = None
    held_out: HeldOut | None = None

    def over(self, other: CellSettings) -> CellSettings:
        """These settings, and where they say nothing the other ones."""
        return CellSettings.model_validate({**other.said(), **self.said()})

    def said(self) -> dict[str, Any]:
        """The settings that say something."""
        return self.model_dump(exclude_none=True)


class ModelEntry(_Part):
    """A model, as in a spec; `name` is what the cells are called by.

    `{data}` in it stands for the name of the data: a model for each, such as checkpoints that are fine-tuned to them.
    """

    model: str
    name: str = ""
    settings: CellSettings = CellSettings()

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"model": value} if isinstance(value, str) else value


class DataEntry(_Part):
    """A folder, a task of quantdrift or one of mteb; a text is a folder or, without one, a task.

    With `retriever`, models are cross-encoders: they rerank the first `top` documents that it finds at full precision.
    With `neighbours`, every input of labelled data searches all others.
    With `sizes`, growing parts of the corpus are searched; a study makes an entry
    of each.
    """

    folder: str | None = None
    task: str | None = None
    mteb: str | None = None
    split: str = "test"
    subset: str | None = None
    retriever: str | None = None
    top: int = Field(default=FIRST, ge=1)
    neighbours: bool = False
    sizes: Annotated[tuple[int | str, ...], AS_LIST] = ()
    name: str = ""
    settings: CellSettings = CellSettings()

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        place = "/" in value or value.startswith((".", "~")) or value.endswith(".npz")
        return {"folder" if place else "task": value}

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
    def of_sizes(self) -> tuple[DataEntry, ...]:
        """An entry for each size; the noise floor is measured at the largest only."""
        quiet = CellSettings(noise_floor=False).over(self.settings)
        return tuple(
            self.model_copy(update={"sizes": (size,), "settings": self.settings if size == self.sizes[-1] else quiet})
            for size in self.sizes
        ) or (self,)

    @property
    def whole(self) -> DataEntry:
        """The same data whatever part of them is searched, and however."""
        return self.model_copy(update={"sizes": (), "settings": CellSettings()})

    @property
    def corpus(self) -> str:
        """What the cells call it, without the size."""
        return self.name or (f"{self.plain}-self" if self.neighbours else self.plain)

    @property
    def plain(self) -> str:
        """What they are called where they lie, however they are read."""
        plain = Path(self.folder).name if self.folder else str(self.task or self.mteb)
        return plain if self.subset is None else f"{plain}-{self.subset}"

    @property
    def called(self) -> str:
        """What the cells call it."""
        return "-".join([self.corpus, *map(str, self.sizes)])


class Row(_Part):
    """Some cells: of a model, a scheme and data by their names; in `exclude`, * stands for anything."""

    model: str | None = None
    scheme: str | None = None
    data: str | None = None


class Study(_Part):
    """The content of study.yaml; `shows` names the tables of the paper that it is for."""

    models: list[ModelEntry] = Field(min_length=1)
    schemes: list[str]
    data: list[DataEntry] = Field(min_length=1)
    seeds: list[int] = Field([0], min_length=1)
    capture: CaptureGrid | None = None
    settings: CellSettings = CellSettings()
    include: list[Row] = []
    exclude: list[Row] = []
    shows: list[str] = []

    @model_validator(mode="before")
    @classmethod
    def _schemes_of_its_own(cls, value: Any) -> Any:
        return {"schemes": [], **value} if isinstance(value, dict) and "capture" in value else value

    @model_validator(mode="after")
    def _whole_corpora(self) -> Self:
        if self.capture is not None and any(entry.sizes for entry in self.data):
            raise ValueError("capture is measured on whole corpora; leave sizes out of data, or make two studies")
        return self

    @field_validator("data")
    @classmethod
    def _of_sizes(cls, data: list[DataEntry]) -> list[DataEntry]:
        return [one for entry in data for one in entry.of_sizes]

    @field_validator("seeds")
    @classmethod
    def _once(cls, seeds: list[int]) -> list[int]:
        if min(seeds) < 0 or len(set(seeds)) < len(seeds):
            raise ValueError("expected whole numbers of 0 or more, each once")
        return seeds


def read_study(path: Path) -> Study:
    """What a study.yaml says, checked; folders in it are relative to its own.

    Raises:
        StudyError: it cannot be read, or holds something else; names the line.
    """
    node, value = loaded_yaml(path)
    return study_of(value, path, folder=path.absolute().parent, node=node)


def loaded_yaml(path: Path) -> tuple[yaml.Node | None, Any]:
    """The tree of a YAML file of ours, and what it says.

    Raises:
        StudyError: it cannot be read, or is no YAML, or too large.
    """
    try:
        with open_file(path) as file:
            content = file.read(_LARGEST + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise StudyError(f"{path} cannot be read: {error.strerror}; expected a study.yaml") from error
    except ValueError as error:
        raise StudyError(f"{path}: {error}; expected a study.yaml, in UTF-8") from error
    if len(content) > _LARGEST:
        raise StudyError(f"{path} is larger than {_LARGEST:,} bytes; expected a study.yaml")
    return _loaded(text, path)


def study_of(value: Any, path: Path, *, folder: Path, node: yaml.Node | None = None) -> Study:
    """The study that a YAML value says, checked; an error names the line of `path` where the tree is given.

    Raises:
        StudyError: it holds something else.
    """
    try:
        found = Study.model_validate(value)
        _check_schemes(found)
    except _AtPlaceError as error:
        raise StudyError(f"{path}{_at(node, error.place)}: {error}") from error.__cause__
    except ValidationError as error:
        first = error.errors()[0]
        raise StudyError(f"{path}{_at(node, first['loc'])}: {_problem(first)}") from error
    return _from(found, folder)


class _AtPlaceError(Exception):
    """What is wrong with a value, and where it stands."""

    def __init__(self, message: str, *place: str | int) -> None:
        super().__init__(message)
        self.place = place


class _Loader(yaml.SafeLoader):
    """Dates and the like stay texts: a folder may be called 2026-01-01."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _loaded(text: str, path: Path) -> tuple[yaml.Node | None, Any]:
    """The tree of a YAML text, and what it says; aliases, which could grow without end, are refused."""
    try:
        loader, depth = _Loader(text), 0
        for event in yaml.parse(text, Loader=_Loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:  # each further level would take longer than the one before
                raise StudyError(f"{path}: this is not YAML of a study: it is nested deeper than {MAX_DEPTH} levels")
            if isinstance(event, yaml.AliasEvent) and event.start_mark is not None:
                raise StudyError(f"{path}, line {event.start_mark.line + 1}: expected no alias (*{event.anchor})")
        node = loader.get_single_node()
        _refuse_twice(node, path)
        return node, None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        line = 0 if error.problem_mark is None else error.problem_mark.line + 1
        raise StudyError(f"{path}, line {line}: this is not YAML: {clean(str(error.problem))}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise StudyError(f"{path}: this is not YAML: {clean(str(error))[:200]}") from error


def _refuse_twice(node: yaml.Node | None, path: Path) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                line = key.start_mark.line + 1
                raise StudyError(f"{path}, line {line}: {clean(str(key.value))[:60]!r} stands there twice")
            seen.add(key.value)
    for part in node.value if isinstance(node, yaml.CollectionNode) else ():
        for each in part if isinstance(part, tuple) else (part,):
            _refuse_twice(each, path)


def _at(node: yaml.Node | None, place: Sequence[str | int]) -> str:
    return "" if node is None else f", line {_line(node, place)}"


def _line(node: yaml.Node | None, place: Sequence[str | int]) -> int:
    """The line of what stands at a place, or of the nearest thing around it."""
    line = 1
    for step in place:
        line = 1 if node is None else node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == str(step)]
            if not found:
                return line
            (key, node), *_ = found
            line = key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
    return line


_KEYS: Mapping[str, type[BaseModel]] = {
    "": Study, "models": ModelEntry, "data": DataEntry, "settings": CellSettings, "include": Row, "exclude": Row,
    "capture": CaptureGrid, "held_out": HeldOut,
}  # fmt: skip


def _problem(first: Any) -> str:
    """One error of pydantic as a sentence."""
    place = [str(each) for each in first["loc"]]
    shown = ".".join(place)
    if first["type"] == "extra_forbidden":
        around = next((name for name in reversed(place[:-1]) if name in _KEYS), "")
        known = list(_KEYS[around].model_fields)
        meant = nearest(place[-1], known, n=1)
        return f"unknown key {clean(place[-1])[:60]!r}; " + (
            f"did you mean {meant[0]}?" if meant else f"expected one of {', '.join(known)}"
        )
    if first["type"] == "missing":
        return f"{shown or 'the study'} is missing; expected models, schemes and data, a list each"
    if first["type"] == "model_type":
        return f"expected models, schemes and data, a list each{f', at {shown}' if shown else ''}"
    what = first["msg"].removeprefix("Value error, ")
    got = "" if first["type"] == "value_error" else f"; got {clean(repr(first['input']))[:60]}"
    return f"{shown}: {what[:1].lower()}{what[1:]}{got}"


def _check_schemes(study: Study) -> None:
    if not study.schemes and study.capture is None:
        raise _AtPlaceError("schemes: expected at least one", "schemes")
    for number, scheme in enumerate(study.schemes):
        _scheme(scheme, "schemes", number)
    for number, row in enumerate(study.include):
        if row.scheme is None:
            raise _AtPlaceError("include: expected a scheme; model and data may be left out", "include", number)
        _scheme(row.scheme, "include", number, "scheme")
    names = {"model": [_called(one) for one in study.models], "data": [one.called for one in study.data]}
    for what, known in names.items():
        if twice := next((name for name in known if known.count(name) > 1), None):
            raise _AtPlaceError(
                f"two {what} entries are called {twice}; give one of them a name", "models" if what == "model" else what
            )
        for rows in ("include", "exclude"):
            for number, row in enumerate(getattr(study, rows)):
                name = getattr(row, what)
                if name is not None and not any(fnmatchcase(one, name) for one in known):
                    meant = nearest(name, known, n=1)
                    hint = f"did you mean {meant[0]}?" if meant else f"expected one of {', '.join(known)}"
                    raise _AtPlaceError(f"{rows}: no {what} is called {clean(name)!r}; {hint}", rows, number, what)


def _scheme(text: str, *place: str | int) -> Scheme:
    try:
        return parse(f"model@{text}").scheme
    except SpecError as error:
        raise _AtPlaceError(str(error).removeprefix("model@"), *place) from error


def _from(study: Study, folder: Path) -> Study:
    """The study with its folders as whole paths."""

    def whole(name: str) -> str:
        return name if is_url(name) else str((folder / Path(name).expanduser()).resolve())

    models = [
        one.model_copy(update={"model": whole(one.model), "name": _called(one)})
        if one.model.startswith((".", "~")) or (folder / one.model).is_dir()
        else one
        for one in study.models
    ]
    data = [one.model_copy(update={"folder": whole(one.folder)}) if one.folder else one for one in study.data]
    data = [
        one.model_copy(update={"retriever": whole(one.retriever)})
        if one.retriever and (one.retriever.startswith((".", "~")) or (folder / one.retriever).is_dir())
        else one
        for one in data
    ]
    if study.capture is None:
        return study.model_copy(update={"models": models, "data": data})
    capture = study.capture.model_copy(update={"seeds": study.capture.seeds or study.seeds})
    more = {
        "models": models,
        "data": data,
        "schemes": list(dict.fromkeys([*study.schemes, *map(str, capture.schemes())])),
        "seeds": capture.seeds,
        "capture": capture,
        "settings": study.settings.over(CellSettings(held_out=HeldOut())),
    }
    return study.model_copy(update=more)


def _called(entry: ModelEntry) -> str:
    return entry.name or (Path(entry.model).name if entry.model.startswith((".", "~", "/")) else entry.model)


# --- its cells ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of a study.

    Attributes:
        name: of its run folder.
        spec: the pair.
        called: what the model is called.
        data: what it is measured on.
        settings: how.
    """

    name: str
    spec: Spec
    called: str
    data: DataEntry
    settings: CellSettings


def cells_of(study: Study) -> tuple[Cell, ...]:
    """All cells, those of one model and one corpus together.

    Raises:
        StudyError: there is none, or more than anybody means.
    """
    found: dict[tuple[str, str, str], Cell] = {}
    size = len(study.models) * len(study.data) * (len(study.schemes) + len(study.include)) * len(study.seeds)
    if size > MOST_CELLS:
        raise StudyError(f"the study has {size:,} cells; expected at most {MOST_CELLS:,}. Split it")
    for model in study.models:
        for data in study.data:
            schemes = [scheme for scheme in study.schemes if not _matches(study.exclude, model, scheme, data)]
            schemes += [
                str(row.scheme)
                for row in study.include
                if _matches([Row(model=row.model, data=row.data)], model, "", data)
            ]
            for scheme in schemes:
                for seeded in _seeded(scheme, study.seeds):
                    spec = Spec(model=model.model.replace("{data}", data.plain), scheme=seeded)
                    name = f"{_slug(_called(model))}@{_slug(str(seeded))}_on_{_slug(data.called)}"
                    found[_called(model), str(seeded), data.called] = Cell(
                        name=name,
                        spec=spec,
                        called=_called(model),
                        data=data,
                        settings=data.settings.over(model.settings.over(study.settings)),
                    )
    if not found:
        raise StudyError("the study has no cells: everything is excluded")
    names = [cell.name for cell in found.values()]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise StudyError(f"two cells would lie in one folder, {twice}; give models or data names that files can have")
    return tuple(found.values())


def _matches(rows: Sequence[Row], model: ModelEntry, scheme: str, data: DataEntry) -> bool:
    def fits(pattern: str | None, *names: str) -> bool:
        return pattern is None or any(fnmatchcase(name, pattern) for name in names)

    return any(
        fits(row.model, _called(model), model.model)
        and fits(row.scheme, scheme, *([str(_scheme(scheme))] if scheme else []))
        and fits(row.data, data.called)
        for row in rows
    )


def _seeded(text: str, seeds: Sequence[int]) -> Iterator[Scheme]:
    """A scheme at every seed, if anything is drawn for it; seed 0 is the scheme as it is."""
    scheme = _scheme(text)
    if not draws(scheme) or scheme.option("seed") is not None:
        yield scheme
        return
    for seed in seeds:
        yield _scheme(f"{text}+seed={seed}") if seed else scheme


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=+-]+", "_", text).strip("._") or "cell"
