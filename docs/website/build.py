"""The website: `python docs/website/build.py`, or `make site`, writes it into build/site and checks its links.

docs/ is written for whoever reads it on a code host, so it is copied to build/pages first, notebooks as pages. There
links out of docs/ lead to copies of those files, folders get an index, and three things are made: the reference of
what `quantdrift` exports, and an example of a report and of a gate, from a run on the questions of docs/example-gate.
Then zensical builds, strictly, and every link and anchor of what it built is looked up.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import quantdrift

ROOT = Path(__file__).resolve().parents[2]
DOCS, BUILD = ROOT / "docs", ROOT / "build"
PAGES, SITE, EXAMPLE = BUILD / "pages", BUILD / "site", BUILD / "example"
HERE = Path(__file__).parent
LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")
"""The target of a link, without its anchor."""
OUTPUT = re.compile(r"^```text\n((?:(?!```).*\n)*?)```$", re.MULTILINE)
"""What a program printed."""
APART = re.compile(r"^```.*?^```|^ {4}[^\n]*|`[^`\n]*`|(?<=\d) (?=%)", re.MULTILINE | re.DOTALL)
"""A number and its percent sign, which no line may part; or code, which is copied from a page and stays as it is."""
SPEC, FAQ = "minilm@W4-rtn", DOCS / "example-gate" / "data" / "faq"
RULES = ("flip@1 <= 0.25", "gold_lost@10 <= 0.03", "ndcg@10 >= 0.65")


def place_of(source: Path) -> Path:
    """Where a file or folder of the repository stands in the pages."""
    if source.name == "README.md" and source.parent in {ROOT, DOCS}:  # the first page, and the one that it names
        return PAGES / ("README.md" if source.parent == ROOT else "documentation.md")
    parts = source.relative_to(ROOT).parts
    if source.is_relative_to(DOCS) and not any(part.startswith(".") for part in parts):
        page = PAGES.joinpath(*parts[1:])
        return page.with_suffix(".md") if page.suffix == ".ipynb" else page
    if source.parent == ROOT and source.suffix == ".md":
        return PAGES / "project" / source.name
    return PAGES.joinpath("files", *(part.lstrip(".") for part in parts))  # hidden files are in no website


def gathered(source: Path) -> None:
    """Copy a page, with its links made to fit; of a folder of files write the index."""
    place = place_of(source)

    def moved(link: re.Match[str]) -> str:
        if urlsplit(link[0]).scheme:
            return link[0]
        target = (source.parent / link[0]).resolve()
        target = target / "README.md" if (target / "README.md").exists() else target
        there = place_of(target)
        if target.is_dir():
            indexed(target, there)
            there /= "README.md"
        elif there.is_relative_to(PAGES / "files"):
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(target, there)
        return os.path.relpath(there, place.parent)

    place.parent.mkdir(parents=True, exist_ok=True)
    text = source.read_text(encoding="utf-8")
    page = text if source.suffix == ".md" else "\n\n".join(cells_of(text))
    place.write_text(OUTPUT.sub(wrapped, LINK.sub(moved, together(page))), encoding="utf-8")


def together(page: str) -> str:
    """Keep numbers and their percent signs on one line, but in code."""
    return APART.sub(lambda found: found[0] if found[0] != " " else "\N{NO-BREAK SPACE}", page)


def wrapped(output: re.Match[str]) -> str:
    """Give sentences that a program printed the class that site.css wraps; tables keep their lines."""
    return output[0] if {*output[1]} & {*"│┃─━"} else f"``` {{ .text .prose }}\n{output[1]}```"


def cells_of(notebook: str) -> Iterator[str]:
    """The cells of a notebook as Markdown, with what they print."""
    for cell in json.loads(notebook)["cells"]:
        if cell["cell_type"] == "markdown":
            yield "".join(cell["source"])
            continue
        yield f"```python\n{''.join(cell['source'])}\n```"
        for output in cell["outputs"]:
            yield f"```text\n{''.join(output['text']).rstrip()}\n```"


def indexed(folder: Path, place: Path) -> None:
    """List the files of a folder that has no page of its own, pages by their titles."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    titles = {path: path.read_text(encoding="utf-8").partition("\n")[0] for path in files if path.suffix == ".md"}
    lines = [f"- [{titles.get(path, path.name).lstrip('# ')}]({path.name})" for path in files]
    name = {"adr": "Decisions"}.get(folder.name, folder.name.capitalize())
    (place / "README.md").write_text("\n".join([f"# {name}", "", *lines, ""]), encoding="utf-8")


def reference() -> str:
    """The page of all that `quantdrift` exports."""
    parts = ["# Python API", "", "What `import quantdrift` gives; [how it is used](python.md).", ""]
    for name, module in sorted(quantdrift._MODULES.items(), key=lambda item: item[0].lower()):  # the one list there is
        called = "parse" if name == "parse_spec" else name
        parts += [f"::: quantdrift.{module}.{called}", "    options:", f"      heading: {name}", ""]
    return "\n".join(parts)


def examples() -> None:
    """Measure once, and write the report and the gate's summary."""
    place = PAGES / "examples"
    place.mkdir(parents=True)
    if not (EXAMPLE / "run" / "run.json").exists():
        shutil.copytree(FAQ, EXAMPLE / "faq", dirs_exist_ok=True)
        quantdrift_("run", SPEC, "--data", "faq", "--out", "run", "--quiet")
    quantdrift_("report", "run", "-o", str(place / "report.html"))
    rules = [word for rule in RULES for word in ("--rule", rule)]
    shown = quantdrift_("gate", "run", *rules, "--report", "gate.md", fails=True)
    summary = (EXAMPLE / "gate.md").read_text(encoding="utf-8")
    summary = re.sub(r"^(?=#)", "#", summary, flags=re.MULTILINE).replace("<details>", '<details markdown="1">')
    text = (HERE / "examples.template").read_text(encoding="utf-8")
    made = {
        "command": "    quantdrift gate run " + " ".join(f"--rule '{rule}'" for rule in RULES),
        "shown": shown,
        "summary": summary,
    }
    text = re.sub(r"\{(\w+)\}", lambda mark: made[mark[1]].rstrip(), text)
    (place / "README.md").write_text(text, encoding="utf-8")


def quantdrift_(*arguments: str, fails: bool = False) -> str:
    """Run a command in the example's folder; what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "quantdrift", *arguments],
        cwd=EXAMPLE,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in ({0, 1} if fails else {0}):
        sys.exit(f"quantdrift {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


class _Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in {"href", "src"} and value is not None:
                self.links.append(value)
            elif name in {"id", "name"} and value:
                self.anchors.add(value)


def broken(site: Path) -> Iterator[str]:
    """Name every link of the built pages that leads nowhere in the site, or loads something from elsewhere."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    for path, page in pages.items():
        if (path.parent.name == "examples" and path.name != "index.html") or path.name == "404.html":
            continue  # a report is one file, whose links are those of its own script; a 404 is shown anywhere
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{path.relative_to(site)}: {link} is not there"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{path.relative_to(site)}: {link} names no heading"


def main() -> int:
    """Gather, build, check."""
    os.chdir(ROOT)
    shutil.rmtree(PAGES, ignore_errors=True)
    EXAMPLE.mkdir(parents=True, exist_ok=True)
    shutil.copytree(DOCS, PAGES, ignore=shutil.ignore_patterns("website", "*.md", "*.ipynb", ".*"))
    shutil.copy(HERE / "site.css", PAGES)
    examples()
    for source in [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb"), *ROOT.glob("*.md")]:
        if HERE not in source.parents:
            gathered(source)
    (PAGES / "reference" / "api.md").write_text(reference(), encoding="utf-8")
    zensical = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    built = subprocess.run(zensical, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    told_of_it = re.sub(r"\x1b\[[\d;]*m", "", built.stdout)
    sys.stdout.write(told_of_it.partition("Traceback")[0])  # where it aborts it ends in one
    if built.returncode:
        return built.returncode
    told = list(broken(SITE))
    print(*told, f"{SITE.relative_to(ROOT)}: {sum(1 for _ in SITE.rglob('*.html'))} pages", sep="\n")
    return bool(told)


if __name__ == "__main__":
    sys.exit(main())
