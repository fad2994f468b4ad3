"""Readers of what harnesses write, each by its format."""
