"""Commands of a package of ours that come by entry points: they are built in."""

from typing import Any

from typer.main import get_command

from quantdrift.cli import FEATURES, app


def test_they_are_listed_among_the_others_and_are_of_no_other_package() -> None:
    group: Any = get_command(app)
    assert list(group.groups["Guard"]) == ["gate", "canary", "verify"]
    assert FEATURES.module("canary") == "quantdrift_servers.canary"
    assert FEATURES.versions(FEATURES["canary"], FEATURES["verify"]) == {}
