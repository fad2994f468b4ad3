"""Engines that search: one a module, which holds all that is known of it."""
