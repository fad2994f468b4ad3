"""Where to spend bits: how much each layer matters, and the widths that follow from it."""
