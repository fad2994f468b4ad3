"""Registries of parts, with packages of others as pip would install them."""

from importlib import import_module
from pathlib import Path

import pytest

from quantdrift.base import registry as registries
from quantdrift.base.display import error_line
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.registry import Registry
from support.packages import install

GROUP = "quantdrift.tried"
WAYS = {
    "exits": "raise SystemExit(7)",
    "unheard": "class Unheard(BaseException): ...\nraise Unheard('of')",
    "missing": "import no_such_module",
    "fine": "ENTRY = 'fine'\ndef work(): return 1 / 0",
    "stops": "raise KeyboardInterrupt",
}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Registry[str]:
    """A registry of strings; a package for every way of failing."""
    for name in request.param:
        module = f"package_{name}"
        files = {f"{module}.py": WAYS[name]}
        install(tmp_path, f"of-{name}", files, {GROUP: {name: f"{module}:ENTRY"}}, version="2.5")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registries, "REGISTRIES", {})
    return Registry(GROUP, package="quantdrift.finished.formats", attribute="NONE", kind=str)


@pytest.mark.parametrize("made", [[name for name in WAYS if name != "stops"]], indirect=True)
def test_whatever_another_package_does_on_import_is_told_and_the_rest_is_known_by_its_package(
    made: Registry[str],
) -> None:
    assert dict(made) == {"fine": "fine"}
    assert {name: reason.partition(":")[0] for name, reason in made.broken.items()} == {
        "exits": "SystemExit",
        "unheard": "Unheard",
        "missing": "ModuleNotFoundError",
    }
    assert made.broken["exits"] == "SystemExit: 7"
    assert made.versions(*made.values()) == {"of-fine": "2.5"}
    assert made.versions() == made.versions("of another registry") == {}


@pytest.mark.parametrize("made", [["fine"]], indirect=True)
def test_of_two_packages_with_one_name_neither_is_taken(made: Registry[str], tmp_path: Path) -> None:
    install(tmp_path, "of-another", {"another.py": "ENTRY = 'other'"}, {GROUP: {"fine": "another:ENTRY"}})
    assert dict(made) == {}
    assert "of-another and of-fine" in made.broken["fine"]


@pytest.mark.parametrize("made", [["stops"]], indirect=True)
def test_ctrl_c_passes(made: Registry[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        len(made)


@pytest.mark.parametrize("made", [["fine"]], indirect=True)
def test_an_error_in_it_is_told_with_package_and_part(made: Registry[str]) -> None:
    from package_fine import work  # type: ignore[import-not-found]  # noqa: PLC0415 -- it is made above

    assert len(made) == 1
    with pytest.raises(ZeroDivisionError) as error:
        work()
    assert error_line(error.value) == "unexpected ZeroDivisionError in of-fine 2.5 (fine): division by zero"
    named = "'fine' of quantdrift.tried, from the package of-fine 2.5"
    with pytest.raises(UnsupportedError, match=named), made.tried("fine"):
        work()
    with pytest.raises(ZeroDivisionError), made.tried("one of ours"):
        work()


def test_entry_points_of_quantdrift_itself_are_built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = {GROUP: {"mine": "package_mine:ENTRY"}}, {GROUP: {"mine": "package_theirs:ENTRY"}}
    install(tmp_path, "quantdrift", {"package_mine.py": "ENTRY = 'mine'\ndef work(): return 1 / 0"}, mine)
    install(tmp_path, "of-theirs", {"package_theirs.py": "ENTRY = 'theirs'"}, theirs)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registries, "REGISTRIES", {})
    registry = Registry(GROUP, kind=str)
    assert dict(registry) == {"mine": "mine"}
    assert registry.broken == {"mine": "ValueError: quantdrift has a 'mine' of its own"}
    assert registry.module("mine") == "package_mine"
    assert registry.versions("mine") == {}
    work = import_module("package_mine").work
    with pytest.raises(ZeroDivisionError) as error, registry.tried("mine"):
        work()
    assert error_line(error.value) == "unexpected ZeroDivisionError: division by zero"
