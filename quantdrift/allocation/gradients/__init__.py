"""What every layer does to every gap, from one forward and one backward pass."""
