"""Calibration inputs, and the layers of a candidate made on them in order."""
