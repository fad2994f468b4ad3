"""How a candidate is run, beside what its weights are."""

from quantdrift.kinds.stage import Mend, Option, Stage

_NUMBER = "a whole number, 1 or more"
STAGE = Stage(
    what="number type, attention, padding, threads and batch size",
    kind="model",
    place=30,
    work="quantdrift.builtin.runtime.work:Runtime",
    mend=lambda _: Mend(what="Run it as the reference is run; quantdrift noise says what each setting changes."),
    by_batch=lambda scheme: scheme.option("padding") is not None,
    part="runtime",
    options={
        "batch": Option(pattern="[1-9][0-9]{0,4}", values=_NUMBER, batches=True, usual=("1", "8", "128")),
        "dtype": Option(pattern="bf16|fp16", values="bf16 or fp16", usual=("fp16", "bf16")),
        "attention": Option(pattern="eager|sdpa", values="eager or sdpa", usual=("eager",)),
        "padding": Option(pattern="left|right", values="left or right", batches=True, usual=("left",)),
        "threads": Option(pattern="[1-9][0-9]{0,2}", values=_NUMBER, usual=("1",)),
    },
)
