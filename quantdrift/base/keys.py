"""Keys of servers: a key is sent only to the host that the environment names with it."""

import os
import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

from quantdrift.base.display import clean, shorten
from quantdrift.base.errors import UnsupportedError

KEY, ADDRESS, _USUAL = "OPENAI_API_KEY", "OPENAI_BASE_URL", "https://api.openai.com/v1"
"""The variables of the key and of the address whose host gets it, as OpenAI's own client has them, and the address that
it takes otherwise. With `_` and a host appended, the first is of that host's key.
"""
_SHORTEST = 4
"""Least characters of a key that is worth hiding."""
_NAME = re.compile(r"[a-z0-9]+(?:-+[a-z0-9]+)*(?:[.][a-z0-9]+(?:-+[a-z0-9]+)*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key and the environment variable that it comes from."""

    value: str = field(repr=False)
    variable: str


def key_from(url: str) -> str:
    """Say which variables may hold the key of the server at a URL."""
    own = _variable_of(KEY, _host(url))
    return f"{KEY} where {ADDRESS} names this host" + (f", or {own}" if own else "")


def find_key(url: str) -> Key | None:
    """The key of the server at a URL; None if the environment has none for its host.

    Raises:
        UnsupportedError: the variable holds no key, or the key would go to another machine unencrypted.
    """
    host = _host(url)
    variables = [_variable_of(KEY, host)]
    if host and host == _host(os.environ.get(ADDRESS, "").strip() or _USUAL):
        variables.append(KEY)
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
