"""URLs that a peer names: how they are written, where they may lead, and what a company allows beyond that."""

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple, NoReturn
from urllib.parse import quote

import idna

from ..addresses import is_loopback_address
from ..errors import SetupError, UnfitUrl
from ..well_formed import is_well_formed

Address = IPv4Address | IPv6Address

LONGEST = 2_048
"""Characters of a URL."""

_LONGEST_NAME = 253  # characters of a host's name (RFC 1035, section 3.1)

_UNFIT = re.compile(r'[\x00-\x20\x7f-\xa0"<>\\^`{|}]|%(?![0-9A-Fa-f]{2})')
"""What no URL holds (RFC 3986, section 2), or what one parser reads as another character than the next one does."""

_UNESCAPED = "!$%&'()*+,-./:;=?@[]_~"

_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""The last label of what resolvers read as an IPv4 address: `127.1`, `0177.0.0.1`, `0x7f000001`, `2130706433`."""

_PORT = re.compile(r"[1-9][0-9]{0,4}")
_PORTS = {"http": 80, "https": 443}

_LOCAL = ("localhost", "local", "internal", "home.arpa", "intranet", "lan", "corp", "home")
"""Names that no public resolver answers for (RFC 6762, appendix G; RFC 8375; ICANN's `internal`)."""

# From IANA's special-purpose registries, and not `is_global`, whose answer depends on the patch release of Python.
_SPECIAL_IPV4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # shared by customers of a carrier
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # the platform of Azure, as its virtual machines reach it
            "169.254.0.0/16",  # link-local, with the metadata of clouds
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocols of the IETF
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",  # AS112, which answers for private addresses
            "192.52.193.0/24",  # relays of multicast
            "192.88.99.0/24",  # relays of 6to4
            "192.168.0.0/16",  # private
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
_GLOBAL_IPV6 = IPv6Network("2000::/3")
"""All that is assigned for use in the Internet. Loopback, link-local, unique local (with the metadata of clouds),
multicast and what holds an IPv4 address (mapped, compatible, 64:ff9b::/96, 64:ff9b:1::/48) are outside.
"""
_SPECIAL_IPV6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocols of the IETF: Teredo, benchmarks, ORCHID
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4, which holds an IPv4 address
            "2620:4f:8000::/48",  # AS112
            "3ffe::/16",  # the 6bone, given back
            "3fff::/20",  # documentation
        ),
    )
)


def is_global(address: Address) -> bool:
    """Return whether an address is of the Internet, and holds no other address that may not be."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _SPECIAL_IPV4)
    return address in _GLOBAL_IPV6 and not any(address in network for network in _SPECIAL_IPV6)


def literal(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


class Origin(NamedTuple):
    scheme: str
    host: str
    """A name in lower case and Punycode, or an address without brackets."""
    port: int

    @property
    def host_and_port(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def authority(self) -> str:
        """Both as a URL and a `Host` header have them: without the port that the scheme has anyway."""
        return self.host_and_port.removesuffix(f":{_PORTS[self.scheme]}")


class Target(NamedTuple):
    origin: Origin
    path: str
    """With the query."""

    def __str__(self) -> str:
        return f"{self.origin.scheme}://{self.origin.authority}{self.path}"


# Parsing


def parse(url: str) -> Target:
    """Return what a URL leads to. No other parser reads it, so none reads another host. Raises `UnfitUrl`."""
    if len(url) > LONGEST:
        _refuse(f"is longer than {LONGEST} characters")
    if not is_well_formed(url) or _UNFIT.search(url):
        _refuse("has a character that no URL holds: write a space and the like as %20")
    scheme, found, rest = url.partition("://")
    scheme = scheme.lower()
    if not found or scheme not in _PORTS:
        _refuse("must begin with https://")
    if "#" in rest:
        _refuse("has a fragment: leave out # and what follows")
    authority = re.split("[/?]", rest, maxsplit=1)[0]
    path = rest[len(authority) :]
    if "@" in authority:
        _refuse("has a user or a password before its host: leave them out")
    origin = _origin(scheme, authority)
    path = quote(path if path.startswith("/") else f"/{path}", safe=_UNESCAPED)
    target = Target(origin, path)
    if len(str(target)) > LONGEST:
        _refuse(f"is longer than {LONGEST} characters, when it is escaped")
    return target


def _origin(scheme: str, authority: str) -> Origin:
    bracketed, bracket, rest = authority.partition("]")
    if authority.startswith("["):
        host, colon, port = bracketed + bracket, rest[:1], rest[1:]
    else:
        host, colon, port = authority.partition(":")
    if colon not in ("", ":") or (colon and not _PORT.fullmatch(port)) or int(port or "1") > 65_535:
        _refuse("has a port that is no number from 1 to 65535")
    return Origin(scheme, _host(host), int(port) if port else _PORTS[scheme])


def _host(text: str) -> str:
    if text.startswith("["):
        return _bracketed(text)
    host = _punycode(text.lower())
    if not host:
        _refuse("has no host")
    if len(host) > _LONGEST_NAME:
        _refuse(f"has a host that is longer than {_LONGEST_NAME} characters")
    if host.endswith("."):
        _refuse("has a host that ends with a dot: leave the dot out")
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        try:
            return str(IPv4Address(host))
        except ValueError:
            _refuse("has an address that is not written as four decimal numbers")
    if not _NAME.fullmatch(host):
        _refuse("has a host that is no name of DNS")
    return host


def _bracketed(text: str) -> str:
    try:
        address = IPv6Address(text[1:-1] if text.endswith("]") else "")
    except ValueError:
        _refuse("has an address in brackets that is none of IPv6")
    if address.scope_id is not None:
        _refuse("has an address with a zone, which is of one machine alone")
    return address.compressed


def _punycode(host: str) -> str:
    if host.isascii() or len(host) > _LONGEST_NAME:  # what is longer is refused, and would take its time
        return host
    try:
        return idna.encode(host).decode()
    except UnicodeError:
        _refuse("has a host whose characters no name may hold: write it in Punycode (xn--...)")


def _refuse(what: str) -> NoReturn:
    raise UnfitUrl(f"The URL {what}")


# What is allowed


class Allowed:
    """Which URLs may be asked, and which addresses they may lead to. Raises `SetupError` for a wrong entry."""

    def __init__(self, allow: Sequence[str], *, by_proxy: bool) -> None:
        if isinstance(allow, str):
            raise SetupError(f"allow={allow!r} is one string; pass a list: allow=[{allow!r}]")
        self._by_proxy = by_proxy
        self._networks: list[IPv4Network | IPv6Network] = []
        self._hosts: set[str] = set()
        self._origins: set[Origin] = set()
        for entry in allow:
            self._add(entry)

    def check(self, url: str) -> Target:
        """Return what a URL leads to, if it may be asked. No name is resolved here. Raises `UnfitUrl`."""
        target = parse(url)
        origin = target.origin
        if self.names(origin):
            return target
        if origin.scheme != "https":
            _refuse("must begin with https://")
        address = literal(origin.host)
        if address is not None:
            if not (is_global(address) or self._takes(address)):
                _refuse("leads to an address that is not of the Internet")
        elif _is_local(origin.host) and (self._by_proxy or not self._networks):
            _refuse("leads to a name that is not of the Internet")
        return target

    def names(self, origin: Origin) -> bool:
        """Return whether an entry names the host or the origin itself."""
        return origin in self._origins or (origin.scheme == "https" and origin.host in self._hosts)

    def is_own(self, origin: Origin) -> bool:
        """Return whether an origin is known as the company's before a name is resolved."""
        address = literal(origin.host)
        return self.names(origin) or (address is not None and self._takes(address))

    def may_connect(self, origin: Origin, address: Address) -> bool:
        if origin.scheme == "http":
            return address.is_loopback and self.names(origin)
        return is_global(address) or self._takes(address) or self.names(origin)

    def _takes(self, address: Address) -> bool:
        return any(address in network for network in self._networks)

    def _add(self, entry: str) -> None:
        if "://" in entry:
            self._add_origin(entry)
        elif "/" in entry or literal(entry) is not None:
            self._add_network(entry)
        else:
            origin = _parsed(entry, f"https://{entry}")
            if ":" in entry.rpartition("]")[2]:
                self._origins.add(origin)
            else:
                self._hosts.add(origin.host)

    def _add_origin(self, entry: str) -> None:
        origin = _parsed(entry, entry)
        if origin.scheme == "http" and not is_loopback_address(origin.host):
            how = f"write https://{origin.authority}"
            raise SetupError(f"allow: {entry!r} is http, which is for loopback alone; {how}")
        self._origins.add(origin)

    def _add_network(self, entry: str) -> None:
        try:
            network = ip_network(entry, strict=False)
        except ValueError:
            raise SetupError(f"allow: {entry!r} is no network; write it like 10.1.0.0/16") from None
        if "/" in entry and ip_address(entry.partition("/")[0]) != network.network_address:
            raise SetupError(f"allow: {entry!r} is an address in a network; write {network}")
        if not network.prefixlen:
            raise SetupError(f"allow: {entry!r} is every address; list the networks of your own, such as 10.1.0.0/16")
        self._networks.append(network)


def _parsed(entry: str, url: str) -> Origin:
    try:
        target = parse(url)
    except UnfitUrl as error:
        why = "no part of it can be *: list each" if "*" in entry else str(error).replace("The URL", "it")
        raise SetupError(f"allow: {entry!r} is not a host ({why}); write it like hooks.example.com") from None
    if target.path != "/":
        raise SetupError(f"allow: {entry!r} has a path; write {target.origin.scheme}://{target.origin.authority}")
    return target.origin


def _is_local(host: str) -> bool:
    return "." not in host or host.endswith(tuple(f".{name}" for name in _LOCAL))
