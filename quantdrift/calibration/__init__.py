"""Calibration: what layers see while they are quantized one after another."""
