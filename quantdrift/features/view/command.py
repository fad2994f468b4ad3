"""`quantdrift view`: finished runs as pages of a server on this machine."""

import webbrowser
from pathlib import Path

from quantdrift.base.display import flush, note, say
from quantdrift.base.errors import RunError
from quantdrift.base.paths import RUNS
from quantdrift.cli.options import argument, flag, prints
from quantdrift.show.output import Output


@prints()
def command(
    *,
    folder: Path = argument("FOLDER: Folder that holds runs at any depth.", RUNS),
    opens: bool = flag("--open: Open it in a browser."),
) -> Output | None:
    """Show all finished runs in a browser: a list, the report of each, and two candidates beside each other.

    Two candidates of one reference on the same data stand beside each other query by query, with three rankings. Where
    the baseline of quantdrift gate is committed, its history over commits is shown; results of gates too, where
    --report FILE.json wrote them into the folder or here.

    The server answers only this machine, reads only, and ends with Ctrl-C. To send somebody a page: quantdrift report
    RUN

    quantdrift view --open

    More: docs/guides/report.md
    """
    if not folder.is_dir():
        raise RunError(f"expected a folder with runs; {folder} is none. Runs are written by: quantdrift run")
    from quantdrift.features.view.server import Server, Site

    with Server(Site(folder=folder.absolute(), beside=Path.cwd())) as server:
        try:
            say(f"{folder} at {server.url} (Ctrl-C ends it)")
            flush()
            if opens and not webbrowser.open(server.url):
                note("no browser was found; open the address above")
            server.serve_forever()
        except KeyboardInterrupt:
            say("ended")
    return None
