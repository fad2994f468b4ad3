"""The commands `canary` and `verify`, about deployed models; they import `quantdrift.parts` alone."""
