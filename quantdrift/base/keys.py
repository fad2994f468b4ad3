"""Keys of servers: a key is sent only to the host that the environment names with it."""

import os
import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

from quantdrift.base.display import clean, shorten
from quantdrift.base.errors import UnsupportedError

_SHORTEST = 4
"""Least characters of a key that is worth hiding."""
_NAME = re.compile(r"[a-z0-9]+(?:-+[a-z0-9]+)*(?:[.][a-z0-9]+(?:-+[a-z0-9]+)*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyNames:
    """The environment variables for the key of a kind of servers.

    Attributes:
        key: the variable of the key for the host in `address`; with `_` and a host appended, of that host's key.
        address: the variable of the server's address, as the servers' own clients use it.
        usual: the address if that variable is not set.
    """

    key: str
    address: str
    usual: str = ""

    def at(self, url: str) -> str:
        """Say which variables may hold the key of the server at a URL."""
        own = _variable_of(self.key, _host(url))
        return f"{self.key} where {self.address} names this host" + (f", or {own}" if own else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key and the environment variable that it comes from."""

    value: str = field(repr=False)
    variable: str


OPENAI = KeyNames(key="OPENAI_API_KEY", address="OPENAI_BASE_URL", usual="https://api.openai.com/v1")


def find_key(names: KeyNames, url: str) -> Key | None:
    """The key of the server at a URL; None if the environment has none for its host.

    Raises:
        UnsupportedError: the variable holds no key, or the key would go to another machine unencrypted.
    """
    host = _host(url)
    variables = [_variable_of(names.key, host)]
    if host and host == _host(os.environ.get(names.address, "").strip() or names.usual):
        variables.append(names.key)
    values = ((name, os.environ.get(name, "").strip()) for name in variables if name)
    variable, value = next(((name, value) for name, value in values if value), ("", ""))
    if not variable:
        return None
    if not (value.isascii() and value.isprintable() and " " not in value):
        raise UnsupportedError(
            f"the environment variable {variable} holds no key: expected letters, digits and signs on one line, "
            "without spaces"
        )
    if urlsplit(url).scheme != "https" and not is_loopback(host):
        raise UnsupportedError(
            f"{url}: the key in {variable} would go over the network unencrypted; expected https://, or a tunnel to "
            "an address of this machine"
        )
    return Key(value=value, variable=variable)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def without_key(text: str, key: Key | None, limit: int = 200) -> str:
    """Clean a server's text for showing or storing: one line, shortened, with the key replaced by ***.

    The text has to be whole, as a key that was cut off at its end is not recognized.
    """
    if key is not None and len(key.value) >= _SHORTEST:
        text = text.replace(key.value, "***")
    return shorten(clean(text), limit)


def _host(url: str) -> str:
    try:
        return urlsplit(url if "//" in url else f"//{url}").hostname or ""
    except ValueError:
        return ""


def _variable_of(key: str, host: str) -> str:
    """The variable for the key of one host; empty if the host has no regular name.

    >>> _variable_of("KEY", "gpu-1.lan"), _variable_of("KEY", "gpu.1.lan"), _variable_of("KEY", "gpu_1")
    ('KEY_GPU__1_LAN', 'KEY_GPU_1_LAN', '')
    """
    if not _NAME.fullmatch(host):
        return ""
    return f"{key}_{host.replace('-', '__').replace('.', '_').upper()}"
