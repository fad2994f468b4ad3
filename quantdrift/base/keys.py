"""Keys of servers: a key goes to the host that the environment names with it, and to no other."""

import os
import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

from quantdrift.base.display import clean, shorten
from quantdrift.base.errors import UnsupportedError

_SHORTEST = 4
"""Characters of a key; a shorter one is no secret."""
_NAME = re.compile(r"[a-z0-9]+(?:-+[a-z0-9]+)*(?:[.][a-z0-9]+(?:-+[a-z0-9]+)*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyNames:
    """The variables of the environment that hold a key.

    Attributes:
        key: the key, of the host that `address` names; `key` with `_` and a host holds that host's.
        address: the address that the key is for, as the servers' own clients take it.
        usual: that address where none is set.
    """

    key: str
    address: str
    usual: str = ""

    def at(self, url: str) -> str:
        """Say where the key of the server at a URL is looked for."""
        own = _variable_of(self.key, _host(url))
        return f"{self.key} where {self.address} names this host" + (f", or {own}" if own else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key, and the variable of the environment where it was found."""

    value: str = field(repr=False)
    variable: str


OPENAI = KeyNames(key="OPENAI_API_KEY", address="OPENAI_BASE_URL", usual="https://api.openai.com/v1")


def find_key(names: KeyNames, url: str) -> Key | None:
    """The key of the server at a URL; None where the environment has none for its host.

    Raises:
        UnsupportedError: what the variable holds is no key, or would go to another machine unencrypted.
    """
    host = _host(url)
    found = [_variable_of(names.key, host)]
    if host and host == _host(os.environ.get(names.address, "").strip() or names.usual):
        found.append(names.key)
    values = ((name, os.environ.get(name, "").strip()) for name in found if name)
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
    """Return what a server said, fit to be shown or stored: on one line, of a length, without the key.

    The text is given in full: what is left of a key at an end that was cut off is not recognized.
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
    """A variable that no other host has; none where a host has no usual name.

    >>> _variable_of("KEY", "gpu-1.lan"), _variable_of("KEY", "gpu.1.lan"), _variable_of("KEY", "gpu_1")
    ('KEY_GPU__1_LAN', 'KEY_GPU_1_LAN', '')
    """
    if not _NAME.fullmatch(host):
        return ""
    return f"{key}_{host.replace('-', '__').replace('.', '_').upper()}"
