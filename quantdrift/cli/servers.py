"""What `quantdrift run` is told of servers."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from quantdrift.display import note
from quantdrift.engine.encoders.server import Servers
from quantdrift.engine.encoders.server_client import Patience
from quantdrift.errors import QuantDriftError
from quantdrift.spec import Spec, Versus


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options for servers, as typed by the user; None for what was not."""

    concurrency: int | None = None
    requests_per_minute: float | None = None
    query_prefix: str | None = None
    document_prefix: str | None = None

    def servers(self, pair: Spec | Versus, *, quiet: bool) -> Servers:
        """How servers are asked.

        Args:
            pair: what is measured.
            quiet: whether nothing is said while it waits.

        Raises:
            QuantDriftError: an option is given, and no model is on a server.
        """
        given = [one.name for one in fields(self) if getattr(self, one.name) is not None]
        if given and not (isinstance(pair, Versus) and pair.on_server):
            option = "--" + given[0].replace("_", "-")
            raise QuantDriftError(
                f'{option} is for a model on a server; expected "REFERENCE vs openai:URL#MODEL", got {str(pair)!r}'
            )
        prefixes = {"query": self.query_prefix, "document": self.document_prefix}
        patience = Patience(requests_per_minute=self.requests_per_minute)
        if not quiet:
            patience = replace(patience, say=note)
        return Servers(
            concurrency=Servers().concurrency if self.concurrency is None else self.concurrency,
            prefixes={role: text for role, text in prefixes.items() if text is not None},
            patience=patience,
        )
