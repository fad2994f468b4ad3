"""Reports for people: one page of a run, a study or a gate, pictures, and tables for papers."""
