"""A run in words: its verdict, its findings, and the lines that say what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from quantdrift.base.text import counted, percent, some
from quantdrift.kinds.stage import STAGES
from quantdrift.runs.identity import answers, classifies
from quantdrift.scheme import FULL_BITS
from quantdrift.spec.grammar import DTYPES

if TYPE_CHECKING:
    from quantdrift.statistics.estimates import Estimate

Record = Mapping[str, Any]
"""The content of run.json."""


def estimates_of(record: Record) -> dict[str, Estimate]:
    """The metrics that stand in a run.json."""
    from quantdrift.statistics.estimates import Estimate  # noqa: PLC0415 -- scipy

    fields = {"value", "low", "high", "n", "reason", "bound"}
    return {
        name: Estimate(**{key: entry[key] for key in fields & entry.keys()})
        for name, entry in (record.get("metrics") or {}).items()
    }


def weights_line(record: Record) -> str:
    """Tell how many bits a weight takes."""
    if "bits_per_weight" not in record:  # of another program's outputs
        return ""
    if (bits := record["bits_per_weight"]) is None:
        return "bits per weight: not known, a server has the weights"
    if not bits.get("n_quantized", 1):
        return f"no weight is quantized{_dtypes(record)}"
    of_all = f"{bits['all_parameters']:.2f} over all parameters{_dtypes(record)}"
    if bits["linear"] == bits["all_parameters"]:  # there are no linear layers
        return f"bits per weight: {of_all}"
    with_scales = f"{bits['linear_with_scales']:.3f} with scales"
    return f"{bits['linear']:g} bits per weight of the linear layers ({with_scales}), {of_all}"


def _dtypes(record: Record) -> str:
    """The number types that both models compute with, where they are known."""
    made = record.get("quantization") or {}
    reference = str(record.get("settings", {}).get("dtype") or "").removeprefix("torch.")
    runtime = str((made.get(STAGES["runtime"].record_key) or {}).get("dtype"))
    candidate = DTYPES[runtime] if runtime in DTYPES else str(made.get("dtype") or reference).removeprefix("torch.")
    if not reference:
        return ""
    both = f"both computed in {reference}" if reference == candidate else ""
    return f"; {both or f'reference computed in {reference}, candidate in {candidate}'}"


def data_line(record: Record) -> str:
    """Tell how much data there was, and how it was read."""

    data = record["data"]
    if shortlist := data.get("shortlist"):
        origin = f" (found by {shortlist['retriever']} at full precision)" if shortlist["from"] == "run" else ""
        top = record["settings"]["shortlist"]["top"]
        return f"{data['n_queries']:,} queries, reranking {top:,} documents of {shortlist['path']}{origin}"
    if not classifies(record):
        n, documents = data.get("n_queries") or 0, data.get("n_documents")
        if answers(record) == "answer":
            return f"{n:,} inputs"
        return f"{n:,} queries" + (f", {documents:,} documents" if documents else "")
    reading = "the model's own logits"
    if record["settings"]["reading"] == "linear probe":
        reading = f"linear probe fitted on {data['n_train']:,} training {data['inputs']}"
    return f"{data['n_inputs']:,} inputs, {data['n_classes']:,} classes, {reading}"


def candidate_lines(record: Record) -> Iterator[str]:
    """Library, widths, calibration, quantized activations, and what the scheme could not do."""
    made, data = record.get("quantization", {}), record.get("data", {})
    if "version" in made:
        grid = f", grid: {made['grid']}" if "grid" in made else ""
        yield f"{made['quantizer']} by {made['backend']} {made['version']}{grid}"
    if graph := made.get("graph"):
        method = graph["method"]
        how = "no layer quantized" if method == "none" else ", ".join(f"{n} layers {by}" for by, n in method.items())
        version, provider = made["libraries"]["onnxruntime"], made["provider"]
        yield f"ONNX by onnxruntime {version}, {provider}: {how}, other numbers {made['dtype']}"
    if allocation := made.get("allocation"):
        yield _widths(allocation)
    if calibration := made.get("calibration"):
        yield _calibration(calibration, made, str(data.get("inputs", "texts")))
    for stage in STAGES.values():
        if part := made.get(stage.record_key):
            yield from stage.run_lines(part)
    if deployment := record.get("deployment"):
        yield _deployed(deployment, record)
    bits = record.get("bits_per_weight") or {}
    if (others := made.get("not_quantized")) and bits.get("n_quantized"):
        sizes = {name: n / bits["n_parameters"] for name, n in others.items()}
        named = some((f"{name} {percent(size)}" for name, size in sizes.items() if size >= _NAMED), most=3)
        yield f"{percent(sum(sizes.values()))} of all parameters are no linear layers and stay as they are: {named}"
    if unreached := (record.get("model") or {}).get("layers_never_reached"):
        yield f"unused layer (does not affect embeddings): {some(unreached)}"
    if floor := record.get("noise_floor"):
        n, moved = floor["within_reach"], f"scores moved by {floor['largest']:.1e} at most"
        closer = f"the {n:,} inputs within reach of that looked at closer" if n else "no input is within reach of that"
        yield f"noise floor of all inputs: {floor['sampled']:,} were run again, and {moved}; {closer}"


_NAMED = 5e-4
"""Share of a model's parameters from which on weights are named."""


def left_alone(record: Record) -> Iterator[str]:
    """Inputs that are left out, and layers that were rounded to nearest instead, or not at all."""
    made, data = record.get("quantization") or {}, record.get("data") or {}
    if left_out := data.get("inputs_left_out"):
        yield f"{left_out:,} inputs that this deployment was chosen by are left out of every figure"
    fallbacks, shares = made.get("fallbacks", {}), made.get("fallback_weights", {})
    for reason in dict.fromkeys(fallbacks.values()):
        share = f" ({percent(shares[reason])} of the weights)" if reason in shares else ""
        yield f"rounded to nearest, {reason}{share}: {some(name for name, why in fallbacks.items() if why == reason)}"
    if layers := made.get("layers_left_out"):
        yield f"left at full precision: {some(layers)}"


def stored_bytes(record: Record) -> float | None:
    """Bytes of a document, in its index if there is one; None for embeddings stored as they are, or where unknown."""
    deployed = record.get("deployment") or {}
    size: float | None = (deployed.get("index") or deployed).get("bytes_per_document")
    return size


def query_ratio(record: Record) -> float | None:
    """Time of a query in the index, as a multiple of exact search; None if not timed."""
    ratio: float | None = ((record.get("times") or {}).get("query") or {}).get("ratio")
    return ratio


def duration_words(ratio: float) -> str:
    """A time as a multiple of exact search: "0.05 times as long as exact search"."""
    return "as long as exact search" if f"{ratio:.2g}" == "1" else f"{ratio:.2g} times as long as exact search"


def _deployed(deployment: Record, record: Record) -> str:
    """Tell what is stored of a document, beside what float32 takes, and how long a query takes in an index."""
    index, size, ratio = deployment.get("index"), stored_bytes(record), query_ratio(record)
    parts = [f"index: {index['name']} by {index['library']}" if index else f"embeddings: {deployment['precision']}"]
    if size is not None:
        parts.append(f"{size:,.0f} bytes a document")
        if dim := deployment.get("dim"):  # not of several rows a document
            beside = "less than" if size < 4 * dim else "more than" if size > 4 * dim else "as many as"
            parts.append(f"{beside} {dim:,} numbers of plain float32 take ({4 * dim:,})")
    if ratio is not None:
        took = 1000 * record["times"]["query"]["index"]
        parts.append(f"a query takes {took:.2g} ms, {duration_words(ratio)} in the same process")
    return ", ".join(parts)


def _widths(allocation: Record) -> str:
    counts = sorted(Counter(allocation["widths"].values()).items())
    shown = ", ".join(f"{n} at {width} bits" if width != FULL_BITS else f"{n} not quantized" for width, n in counts)
    bits, n = allocation["bits_per_weight"], allocation["calibration_inputs"]
    average = "" if bits is None else f"{bits:.2f} bits per weight: "
    how = "changed by hand after" if allocation["edited"] else "by"
    source = f" on {n:,} inputs of {allocation['dataset'] or 'the data'}" if n else ""
    return f"{average}layers {shown}, {how} {allocation['criterion']}{source}"


def _calibration(calibration: Record, made: Record, called: str) -> str:
    source = calibration["source"]
    things = "documents" if source == "corpus" else f"{called} of {source}"
    queries = f" and {n:,} queries" if (n := calibration.get("n_queries")) else ""
    what = f"{calibration['n_inputs']:,} of {calibration['of']:,} {things}{queries} (seed {calibration['seed']})"
    if made["layers_kept_from_before"] == len(made["layers"]):
        return f"calibrated on {what}, kept from an earlier run"
    return f"calibrated on {what} in {made['seconds']:.0f} s, of which the method took {made['seconds_in_method']:.0f}"


def findings(record: Record) -> Iterator[str]:
    """What there is to say beside the verdict, in plain sentences."""

    def value(name: str) -> float | None:
        figure: float | None = metrics.get(name, {}).get("value")
        return figure

    metrics = record.get("metrics") or {}
    yield from _on_ties(metrics, value("flip@1"))
    codes, index, recall = map(value, ("codes.flip@1", "index.flip@1", "index.overlap@10"))
    if codes is not None and index is not None:
        yield (
            f"Searched exhaustively, what the index stores changes {percent(codes)}. Its own search finds another "
            f"first answer than that in {percent(index)}{'' if recall is None else f' (recall@10 {recall:.3f})'}."
        )
    shortlist = record["data"].get("shortlist") or {}
    relevant, listed = shortlist.get("n_relevant"), shortlist.get("n_relevant_found")
    if relevant and listed != relevant:
        yield (
            f"{relevant - listed:,} of {relevant:,} relevant documents are in no shortlist: neither arm can find them, "
            "and they count in nDCG."
        )


def _on_ties(metrics: Record, flip: float | None) -> Iterator[str]:
    """Tell how far the flips rest on exact ties, and on differences that noise makes too; nothing where none do."""
    least, expected, most = (
        metrics.get(name, {}).get("value") for name in ("flip_least", "flip_expected", "flip_most")
    )
    same = len({metrics.get(name, {}).get("n") for name in ("flip@1", "flip_least", "flip_most")}) == 1
    if same and None not in {flip, least, expected, most} and least < most:
        resting = round((flip - least) * metrics["flip@1"]["n"])
        yield (
            f"Exact ties: over all ways to break them {percent(least)} to {percent(most)} of the inputs flip, "
            f"{percent(expected)} expected"
            + (f"; {resting:,} of the flips {'rests' if resting == 1 else 'rest'} on a tie." if resting else ".")
        )
    near = metrics.get("interchangeable", {})
    if near.get("value"):
        yield (
            f"{round(near['value'] * near['n']):,} of {counted(near['n'], 'flip')} are interchangeable: the reference "
            "scores both answers alike, as far as its own noise lets one tell."
        )
