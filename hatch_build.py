"""The addresses in the package's metadata: those of the repository that a release is made from.

The release workflow names it in QUANTDRIFT_REPOSITORY (https://HOST/OWNER/NAME), so a fork's package never points to
somebody else's issues. Any other build has the package's own page on PyPI. An sdist holds what it was built with.
"""

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Addresses(MetadataHookInterface):
    """Fills in `project.urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the addresses to the metadata."""
        metadata["urls"] = {"Homepage": "https://pypi.org/project/quantdrift/"}
        if repository := os.environ.get("QUANTDRIFT_REPOSITORY", "").rstrip("/"):
            metadata["urls"] = {
                "Homepage": repository,
                "Documentation": f"{repository}/blob/main/docs/README.md",
                "Issues": f"{repository}/issues",
                "Changelog": f"{repository}/blob/main/CHANGELOG.md",
                "Security": f"{repository}/blob/main/SECURITY.md",
            }
