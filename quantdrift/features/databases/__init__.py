"""Vector databases as indexes: one engine a module, on what they share in `database`."""
