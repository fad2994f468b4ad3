"""What reads collections: one kind a module."""
