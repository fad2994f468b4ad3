"""Finished runs as points, sentences and figures; nothing here needs torch."""
