"""Grids of measurements that answer a question about a method, not about one model."""
