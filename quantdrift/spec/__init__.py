"""The string that names a pair: its grammar, and the file of widths that it may name."""
