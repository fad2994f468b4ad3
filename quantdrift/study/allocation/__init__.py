"""How well criteria spend bits: criteria by budgets, quantizers, corpora, seeds and sizes."""
