"""See which answers quantization changed, and which can still be trusted.

Nothing heavy is imported here, as the start-up hook loads this file whenever Python starts; the names below load their
modules when they are first used.

PYTEST_DONT_REWRITE: this module is imported before pytest starts, and without this word pytest would warn of that.
"""

__version__ = "0.1.0"

_MODULES = {
    "Embeddings": "api",
    "Evidence": "evidence.record",
    "GapRouter": "trust.router",
    "QuantDriftError": "base.errors",
    "QuantizedPair": "candidate.pair",
    "RetrievalDataset": "data.retrieval",
    "Run": "api",
    "Scheme": "spec.grammar",
    "Settings": "models.inputs",
    "Spec": "spec.grammar",
    "StabilityCheck": "trust.check",
    "compare_runs": "compare.two_runs",
    "drift": "api",
    "measure": "metrics",
    "parse_metric": "metrics",
    "parse_scheme": "spec.grammar",
    "parse_spec": "spec.grammar",
    "read_beir_folder": "data.retrieval",
    "read_run": "api",
    "score_embeddings": "scoring.streamed",
}

__all__ = [*_MODULES]  # noqa: PLE0604 -- names of the table above


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'quantdrift' has no attribute {name!r}")
    # a plain start must not pay for these
    from importlib import import_module  # noqa: PLC0415

    from quantdrift.base.extras import extras_named  # noqa: PLC0415

    with extras_named(needed_for=f"quantdrift.{name}"):
        module = import_module(f"quantdrift.{_MODULES[name]}")
    return getattr(module, "parse" if name == "parse_spec" else name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
