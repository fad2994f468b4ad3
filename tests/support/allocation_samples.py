"""An allocation of four layers: two tied, one alone, one left out."""

from __future__ import annotations

from quantdrift.allocation.record import AllocatedLayer, Allocation

LAYERS = (
    AllocatedLayer(name="l.0.query", shape=(2, 3), width=4, loss=(0.5, 0.0), unit=0),
    AllocatedLayer(name="l.0.key", shape=(2, 3), width=4, loss=(0.25, 0.0), unit=0),
    AllocatedLayer(name="l.0.dense", shape=(3, 4), width=3, loss=(0.1, 0.0), unit=1),
    AllocatedLayer(name="head", shape=(1, 4), width=16),
)
ALLOCATION = Allocation(
    model="modèle",
    fingerprint="0123abcd",
    group_size=128,
    quantizer="gptq",
    criterion="gap",
    settings={"contenders": 4, "mean": "square"},
    seed=3,
    dataset="cranfield",
    data_digest="beef",
    input_ids=("q1", "q2"),
    widths=(3, 4),
    budget=3.5,
    method="knapsack",
    status="optimal",
    bound=0.09,
    layers=LAYERS,
    n_others=72,
    others_bits=72 * 32,
    version="0.1.0",
    date="2026-01-02T03:04:05+00:00",
)
