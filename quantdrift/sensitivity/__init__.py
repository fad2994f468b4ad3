"""How much each layer's rounding moves the answers, and the widths that follow."""
