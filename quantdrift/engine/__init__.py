"""Everything that needs torch: encoders, quantizers, scoring, and the one way to measure a pair."""
