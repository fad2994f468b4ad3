"""From losses and bits to widths."""
