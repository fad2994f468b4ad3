from __future__ import annotations

from dataclasses import dataclass

QUANTIZERS = ("rtn", "gptq", "gptq_ao", "awq", "hqq", "adaround")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    weight_bits: float
    activation_bits: int | None = None
    group_size: int | None = 128
    quantizer: str = "rtn"
    query_only: bool = False
    criterion: str | None = None
    options: tuple[tuple[str, str], ...] = ()

    @property
    def is_mixed(self) -> bool:
        return self.weight_bits != int(self.weight_bits)

    def __str__(self) -> str:
        g = "channel" if self.group_size is None else f"g{self.group_size}"
        return f"W{self.weight_bits:g}-{g}-{self.quantizer}" + ("+query" if self.query_only else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    model: str
    scheme: Scheme

    def __str__(self) -> str:
        return f"{self.model}@{self.scheme}"


def parse(text: str) -> Spec:
    m, s = text.rsplit("@", 1)
    base, *opts = s.split("+")
    bits, *parts = base.split("-")
    g: int | None = 128
    q = "rtn"
    for p in parts:
        if p == "channel":
            g = None
        elif p[0] == "g" and p[1:].isdigit():
            g = int(p[1:])
        else:
            q = p
    return Spec(
        model=m,
        scheme=Scheme(
            weight_bits=float(bits[1:]), group_size=g, quantizer=q, query_only="query" in opts
        ),
    )
