"""Runtime options of a candidate."""

from quantdrift.kinds.stage import Advice, Option, Stage

_NUMBER = "a whole number, 1 or more"
STAGE = Stage(
    what="number type, attention, padding, threads and batch size",
    kind="model",
    place=30,
    work="quantdrift.builtin.runtime.work:Runtime",
    advice=lambda _: Advice(what="Run it as the reference is run."),
    depends_on_batch=lambda scheme: scheme.option("padding") is not None,
    record_key="runtime",
    options={
        "batch": Option(pattern="[1-9][0-9]{0,4}", values=_NUMBER, sets_batches=True),
        "dtype": Option(pattern="bf16|fp16", values="bf16 or fp16"),
        "attention": Option(pattern="eager|sdpa", values="eager or sdpa"),
        "padding": Option(pattern="left|right", values="left or right", sets_batches=True),
        "threads": Option(pattern="[1-9][0-9]{0,2}", values=_NUMBER),
    },
)
