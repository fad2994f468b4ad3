"""What reads collections: one kind a module, where it is no module of `features.databases`."""
