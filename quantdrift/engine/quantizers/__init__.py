"""From a weight matrix to codes: built in, or by the libraries people deploy with."""
