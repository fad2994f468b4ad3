"""Suites: studies with a name, such as those of the paper; some have an offline variant."""

from collections.abc import Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from quantdrift.base.errors import StudyError, UnknownNameError
from quantdrift.base.records import problem_of
from quantdrift.study.plan import DataEntry, Study, loaded_yaml, study_of

GROUP = "quantdrift.suites"
"""Group of entry points that name a folder of suites."""


class Suite(BaseModel, frozen=True, extra="forbid"):
    """A study with a name.

    Attributes:
        name: the suite's name.
        about: description in a line.
        shows: tables and figures of the paper that it measures, by their names in `tasks/quantdrift_paper`.
        content: its study, as in study.yaml.
        offline: replacements for the offline variant; None if there is none.
        made: models and data that must be made first: place in the working folder to instructions.
        file: the suite's file.
    """

    name: str
    about: str
    shows: tuple[str, ...] = ()
    content: dict[str, Any] = Field(alias="study")
    offline: dict[str, Any] | None = None
    made: dict[str, str] = {}
    file: Path

    def study(self, *, offline: bool = False, models: Sequence[str] = (), data: Sequence[str] = ()) -> Study:
        """Return the study or its offline variant, with its models and data replaced if others are given.

        Replaced data are read in all the ways of the suite: also reranked, or by neighbours.

        Raises:
            StudyError: it has no offline variant, or is no valid study.
        """
        content = self.content
        if offline:
            if self.offline is None:
                raise StudyError(
                    f"the suite {self.name} has no offline variant; expected models and data of yours: "
                    "--models NAME --data FOLDER"
                )
            content = {**content, **self.offline}
        if models:
            content = {**content, "models": [*models]}
        if data:
            keys = {"retriever", "top", "sizes", "neighbours"}
            entries = [entry if isinstance(entry, dict) else {} for entry in content["data"]]
            kept = [{key: value for key, value in entry.items() if key in keys} for entry in entries]
            ways = [way for place, way in enumerate(kept) if way not in kept[:place]]
            given = [DataEntry.model_validate(entry).model_dump(exclude_none=True) for entry in data]
            content = {**content, "data": [{**entry, **way} for entry in given for way in ways]}
        return study_of({**content, "shows": [*self.shows]}, self.file, folder=Path.cwd())

    def refuse_missing(self, study: Study) -> None:
        """Refuse a study whose models or data must be made first, and say how.

        Raises:
            StudyError: one is missing.
        """
        used = {*(entry.model for entry in study.models), *(entry.folder for entry in study.data)}
        for place, how in self.made.items():
            whole = str((Path.cwd() / place).resolve())
            if whole in used and not Path(whole.partition("{")[0]).exists():
                raise StudyError(
                    f"{place} is not there, and the suite {self.name} measures it; needed first, from a checkout: {how}"
                )


def suite_names() -> list[str]:
    """Return the names of all suites."""
    return sorted(_files())


def load_suite(name: str) -> Suite:
    """Load a suite by name.

    Raises:
        UnknownNameError: there is none.
        StudyError: its file is damaged.
    """
    files = _files()
    if name not in files:
        raise UnknownNameError("suite", name, files, hint="(quantdrift list suites shows all)")
    file = files[name]
    content = loaded_yaml(file)
    if not isinstance(content, dict):
        raise StudyError(f"{file} is no suite; expected about, shows, study, offline and made")
    try:
        return Suite(**{**content, "name": name, "file": file})
    except ValidationError as error:
        raise StudyError(f"{file} is no suite: {problem_of(error)}") from error


def _files() -> dict[str, Path]:
    files: dict[str, Path] = {}
    for point in entry_points(group=GROUP):
        spec = find_spec(point.value)  # finds the folder without importing it
        for folder in () if spec is None else spec.submodule_search_locations or ():
            files |= {file.stem: file for file in Path(folder).glob("*.yaml")}
    return files
