"""The modules that all others stand on: errors, text, records, files that are kept, progress. No torch."""
