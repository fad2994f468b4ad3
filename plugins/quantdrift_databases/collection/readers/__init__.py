"""What reads collections: one kind a module, where it is no engine's module."""
