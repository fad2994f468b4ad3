"""GPTQ with columns in the order of their activations (act-order)."""

from dataclasses import replace

from quantdrift.builtin import gptq

QUANTIZER = replace(gptq.QUANTIZER, title="GPTQ (act-order)", place=20)
