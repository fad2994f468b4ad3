"""What everything stands on: errors, text, records, files that are kept, progress. No torch."""
