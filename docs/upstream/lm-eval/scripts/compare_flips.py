"""Show which answers changed between two runs of the same tasks.

Both runs were logged with `--log_samples`. Two models of equal accuracy can be right
on different documents; this counts them: answers that changed, right answers that
were lost, wrong ones that became right, and McNemar's exact test of the two counts.

Usage:
   python scripts/compare_flips.py results/full results/int4 --documents
"""

import argparse
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path


FILE = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")
HASHES = ("doc_hash", "prompt_hash", "target_hash")
KNOWN = ("exact_match", "acc", "acc_norm")  # preferred, if several metrics are 0 or 1


class MismatchError(ValueError):
    """The two runs do not answer the same questions."""


@dataclass(frozen=True)
class Flip:
    """A document whose answer or correctness changed.

    `kind` is "lost" (right to wrong), "won" (wrong to right) or "changed" (another
    answer that is as right or wrong as the first).
    """

    doc_id: int
    kind: str
    before: str
    after: str


@dataclass(frozen=True)
class Comparison:
    """One task after one filter; what has no answer or no 0/1 metric is None."""

    task: str
    filter: str
    docs: int
    metric: str | None = None
    before: float | None = None
    after: float | None = None
    changed: int | None = None
    lost: int | None = None
    won: int | None = None
    p_value: float | None = None
    flips: list[Flip] = field(default_factory=list)


def mcnemar_exact(lost: int, won: int) -> float:
    """Two-sided p-value of McNemar's exact test.

    If neither model is better, each of the lost + won documents is as likely lost as
    won: a binomial test of a fair coin, without an approximation for any count.
    """
    n, term, tail = lost + won, 1, 0
    for k in range(min(lost, won) + 1):
        tail += term
        term = term * (n - k) // (k + 1)
    return min(1.0, 2 * tail / 2**n)


def find_samples(folder: Path) -> dict[str, Path]:
    """Return the newest file of samples of each task in the folder of one model."""
    files = [*folder.glob("samples_*.jsonl"), *folder.glob("*/samples_*.jsonl")]
    named = [(file, match) for file in files if (match := FILE.fullmatch(file.name))]
    if not named:
        raise MismatchError(f"{folder}: no samples_*.jsonl; run with --log_samples")
    homes = sorted({str(file.parent) for file, _ in named})
    if len(homes) > 1:
        raise MismatchError(f"{folder}: samples of several models; give one of {homes}")
    newest = sorted(named, key=lambda pair: pair[1]["date"])
    return {match["task"]: file for file, match in newest}


def read_samples(file: Path) -> dict[str, dict[int, dict]]:
    """Read the samples of a task by filter and document."""
    filters: dict[str, dict[int, dict]] = {}
    with open(file, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                sample = json.loads(line)
                key, name = sample["doc_id"], sample["filter"]
                answer = answer_of(sample)
            except (ValueError, KeyError, TypeError, AttributeError, IndexError) as e:
                raise MismatchError(f"{file}, line {number}: no sample ({e!r})") from e
            documents = filters.setdefault(name, {})
            if key in documents:
                raise MismatchError(f"{file}: document {key} occurs twice")
            documents[key] = {**sample, "answer": answer}
    return filters


def requests_of(sample: dict) -> list[list]:
    """Return the arguments of each request for a document."""
    return [list(request.values()) for request in sample["arguments"].values()]


def answer_of(sample: dict) -> str | None:
    """Return what the model answered, after the filter; None for a perplexity.

    Of several choices it is the number of that with the highest log-likelihood, which
    `acc` judges, the first of equal ones. Of one text it is whether greedy decoding
    gives it.
    """
    requests, answers = requests_of(sample), sample["filtered_resps"]
    if len(requests[0]) < 2:
        return None
    if isinstance(requests[0][1], dict):
        text = answers[0]
        return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
    if "acc_mutual_info" in sample["metrics"]:  # it asks for each choice twice
        answers = answers[: len(answers) // 2]
    if len(answers) == 1:
        return "target" if str(answers[0][1]) == "True" else "other"
    scores = [float(answer[0]) for answer in answers]
    return str(scores.index(max(scores)))


def check_same(what: str, before: object, after: object, where: str) -> None:
    """Refuse two collections that do not hold the same."""
    first, second = set(before), set(after)
    if first != second:
        only = [sorted(map(str, part))[:5] for part in (first - second, second - first)]
        raise MismatchError(
            f"{where}: the runs have different {what}; only in the reference: "
            f"{only[0]}, only in the candidate: {only[1]}"
        )


def check_questions(before: dict, after: dict, where: str) -> None:
    """Refuse documents that were not asked the same."""
    check_same("documents", before, after, where)
    for key, sample in before.items():
        other = after[key]
        differ = [name for name in HASHES if sample.get(name) != other.get(name)]
        if not differ and requests_of(sample) != requests_of(other):
            differ = ["arguments"]
        if differ:
            raise MismatchError(
                f"{where}: document {key} differs in {', '.join(differ)}; run both with "
                "the same task version, --num_fewshot, chat template and --gen_kwargs"
            )


def judge(before: dict, after: dict, wanted: str | None, where: str) -> str | None:
    """Choose the metric that says right or wrong of every document in both runs."""
    samples = [*before.values(), *after.values()]
    names = [
        name
        for name in samples[0]["metrics"]
        if all(sample.get(name) in (0, 1) for sample in samples)
    ]
    if wanted is not None and wanted not in names:
        raise MismatchError(f"{where}: {wanted} is not 0 or 1 everywhere; {names} are")
    ranked = [name for name in KNOWN if name in names] + names
    return wanted or next(iter(ranked), None)


def compare(
    before: dict, after: dict, task: str, name: str, metric: str | None = None
) -> Comparison:
    """Compare two runs on one task after one filter."""
    where = f"{task}, filter {name}"
    check_questions(before, after, where)
    metric, flips, right = judge(before, after, metric, where), [], []
    for key, sample in sorted(before.items()):
        other = after[key]
        answers = str(sample["answer"]), str(other["answer"])
        kind = "changed"
        if metric:
            right.append((bool(sample[metric]), bool(other[metric])))
            kind = {(1, 0): "lost", (0, 1): "won"}.get(right[-1], kind)
        if kind != "changed" or answers[0] != answers[1]:
            flips.append(Flip(key, kind, *answers))
    answered = all(sample["answer"] is not None for sample in before.values())
    counts = {
        "docs": len(before),
        "changed": sum(flip.before != flip.after for flip in flips)
        if answered
        else None,
        "flips": flips,
    }
    if metric:
        lost, won = (sum(f.kind == kind for f in flips) for kind in ("lost", "won"))
        counts |= {
            "metric": metric,
            "before": sum(first for first, _ in right) / len(right),
            "after": sum(second for _, second in right) / len(right),
            "lost": lost,
            "won": won,
            "p_value": mcnemar_exact(lost, won),
        }
    return Comparison(task, name, **counts)


def compare_folders(
    reference: Path,
    candidate: Path,
    metric: str | None = None,
    tasks: list[str] | None = None,
) -> list[Comparison]:
    """Compare all tasks of two runs, or those that are named."""
    files = [find_samples(folder) for folder in (reference, candidate)]
    if tasks:
        files = [{t: f for t, f in found.items() if t in tasks} for found in files]
        for found in files:
            check_same("tasks", tasks, found, "--tasks")
    check_same("tasks", *files, where=f"{reference} and {candidate}")
    rows = []
    for task in sorted(files[0]):
        before, after = (read_samples(found[task]) for found in files)
        check_same("filters", before, after, task)
        for name in before:
            rows.append(compare(before[name], after[name], task, name, metric))
    return rows


def cell(value: object) -> str:
    """Write a number as a table shows it."""
    if isinstance(value, float):
        return f"{value:.4f}" if value >= 1e-4 or value == 0 else f"{value:.1e}"
    return "-" if value is None else str(value)


def print_table(rows: list[Comparison]) -> None:
    """Print the comparisons as a Markdown table."""
    head = ["Task", "Filter", "Docs", "Changed", "Lost", "Won", "Metric"]
    head += ["Before", "After", "McNemar p"]
    keys = ["task", "filter", "docs", "changed", "lost", "won", "metric"]
    keys += ["before", "after", "p_value"]
    cells = [head, *([cell(getattr(row, key)) for key in keys] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    for line in cells:
        padded = (text.ljust(n) for text, n in zip(line, widths, strict=True))
        print("|" + "|".join(padded) + "|")


def parse_args(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("reference", type=Path, help="folder of the first run")
    parser.add_argument("candidate", type=Path, help="folder of the second run")
    parser.add_argument("--tasks", help="only these, separated by commas")
    parser.add_argument("--metric", help="the 0/1 metric that says what is right")
    parser.add_argument("--documents", action="store_true", help="list every flip")
    parser.add_argument(
        "--json", action="store_true", help="print JSON, flips included"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Print the comparison; 2 if the runs cannot be compared."""
    args = parse_args(arguments)
    tasks = args.tasks.split(",") if args.tasks else None
    try:
        rows = compare_folders(args.reference, args.candidate, args.metric, tasks)
    except (MismatchError, OSError) as error:
        print(f"compare_flips: {error}", file=sys.stderr)
        return 2
    if args.json:
        shown = [{**vars(row), "flips": [vars(f) for f in row.flips]} for row in rows]
        print(json.dumps(shown, indent=2, ensure_ascii=False))
        return 0
    print_table(rows)
    for row in rows if args.documents else ():
        print(f"\n{row.task}, filter {row.filter}:")
        for flip in row.flips:
            print(f"  {flip.kind} {flip.doc_id}: {flip.before!r} -> {flip.after!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
