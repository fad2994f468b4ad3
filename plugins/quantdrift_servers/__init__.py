"""Commands about models that are deployed: `canary` and `verify`. They stand on `quantdrift.parts` alone."""
