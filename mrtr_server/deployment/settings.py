"""What a server is made with; `MRTRServer` documents each where it is given."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass, field, fields
from inspect import isasyncgenfunction
from typing import Any, Generic, Literal, TypeVar

from starlette.authentication import AuthenticationBackend
from starlette.middleware import Middleware

from ..addresses import BaseUrl, hosts_of
from ..concurrency.shutdown import DEFAULT
from ..crypto.codec import Codec
from ..crypto.keys import KeyRing
from ..errors import SetupError, check_scopes
from ..events.options import Events, Webhooks
from ..fields import POSITIVE_SECONDS, Group, has, several, takes
from ..flow.authorization import Authorize
from ..flow.rate_limiter import RateLimits
from ..limits import Limits
from ..protocol.outgoing import check_extensions, fault_of_page
from ..protocol.served_dialects import check_dialects
from ..registration.options import TAKES_ICONS, Icons
from ..storage.base import Store
from ..telemetry.choice import OpenTelemetry
from ..telemetry.choice import check as check_telemetry
from ..transport.callback_pages import Identify
from ..transport.gate import check_origins
from ..well_formed import refuse_halves

Server = TypeVar("Server")

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # a bearer token (RFC 6750, section 2.1)

LAME_DUCK = 2.0
"""How long connections are accepted after SIGTERM, in seconds: longer than our nginx configuration keeps idle ones."""


_CARD_NAME = re.compile(r"[a-zA-Z0-9-]+(\.[a-zA-Z0-9-]+)*/[a-zA-Z0-9._-]+")
_LONGEST_CARD_NAME = 200
_LONGEST_DESCRIPTION = 100
"""Characters of a description, or of a title, in a card."""


@dataclass(frozen=True, kw_only=True)
class ServerInfo(Group):
    """What a server says of itself (Discovery, Server Information): `MRTRServer(info=ServerInfo(version="1.2"))`.

    Args:
        version: the server's own version, for clients to see.
        title: a name for people.
        description: what the server does, for people and for hosts that show or choose servers.
        website_url: where people can read about it.
        icons: for people to recognize it by.
        name: the server's name for all the world, such as `"com.example/weather"`: a domain in reverse, a slash, and a
            name. Clients see it, and with `base_url=`, the server has a card at `/server-card` below its endpoint, and
            a catalog at `/.well-known/ai-catalog.json` (Server Cards, Discovery).

    Raises:
        SetupError: one can't be right; the message says why.
    """

    version: str = "0.0.0"
    title: str | None = None
    description: str | None = None
    website_url: str | None = None
    icons: Icons = field(default=(), metadata=TAKES_ICONS)
    name: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is not None:
            self._check_card(self.name)
        refuse_halves("ServerInfo", {each.name: getattr(self, each.name) for each in fields(self)})
        if self.website_url is not None and (fault := fault_of_page(self.website_url)):
            raise SetupError(f"website_url={self.website_url!r} {fault}")

    def _check_card(self, name: str) -> None:
        if not _CARD_NAME.fullmatch(name) or len(name) > _LONGEST_CARD_NAME:
            raise SetupError(
                f'ServerInfo(name={name!r}): write a domain in reverse, a slash and a name: "com.example/weather"'
            )
        for member, value in (("description", self.description), ("title", self.title or "-")):
            if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_DESCRIPTION:
                raise SetupError(
                    f"ServerInfo: with a name= the server has a card, which needs a {member}= of 1 to "
                    f"{_LONGEST_DESCRIPTION} characters"
                )


@dataclass(frozen=True, kw_only=True)
class Lists(Group):
    """How a server lists what it has (Pagination; Caching): `MRTRServer(lists=Lists(page_size=50))`.

    Args:
        page_size: the number of entries on a page of a list.
        cache_seconds: how long clients may cache lists, in seconds.
        cache: who may share cached lists: `"public"` for all, `"private"` for each caller alone. Default: `"private"`
            with `auth`, otherwise `"public"`. A list that depends on `authorize=` is always private.

    Raises:
        SetupError: one can't be right; the message says why.
    """

    page_size: int = field(default=250, metadata=takes("a number of entries"))
    cache_seconds: float = 0.0
    cache: Literal["public", "private"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.page_size < 1:
            raise SetupError("page_size must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Shutdown(Group):
    """How a server ends, and when it takes no calls: `MRTRServer(shutdown=Shutdown(seconds=50, lame_duck=5))`.

    Args:
        seconds: how long the whole shutdown may take from SIGTERM on, `lame_duck` included, in seconds; less than the
            orchestrator waits before it kills. What still runs a quarter of that before the end, or five seconds, is
            cut off.
        lame_duck: how long the server accepts connections after SIGTERM, in seconds, while it reports that it is not
            ready and hands calls to other replicas. It gives whatever routes requests the time to notice. Default: 2,
            or half of `seconds` if that is less.
        ready_needs_store: whether `/ready` returns 503 while the shared store is unavailable. Its body says so in any
            case, and calls that need no store are still served.

    Raises:
        SetupError: one can't be right, or `lame_duck` is not less than `seconds`.
    """

    seconds: float = field(default=DEFAULT, metadata=takes(POSITIVE_SECONDS))
    lame_duck: float | None = None
    ready_needs_store: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lame_duck is not None and self.lame_duck >= self.seconds:
            raise SetupError(
                f"lame_duck={self.lame_duck:g} must be less than the {self.seconds:g} seconds that the shutdown may "
                "take; raise seconds="
            )

    @property
    def lame_duck_seconds(self) -> float:
        """How long connections are accepted after SIGTERM, in seconds."""
        return min(LAME_DUCK, self.seconds / 2) if self.lame_duck is None else self.lame_duck


@dataclass(frozen=True, kw_only=True)
class Apps(Group):
    """How apps of hosts are used: `MRTRServer(apps=Apps(question=True))`.

    Args:
        question: whether what a tool asks is asked in a page of this package, by hosts that draw apps (MCP Apps) and
            can't elicit. `"always"` does so for clients of which nothing is known, too. Default: where replicas share
            a store, which remembers what was asked.

    Raises:
        SetupError: one can't be right; the message says why.
    """

    question: Literal["always"] | bool | None = None


@dataclass(frozen=True)
class Metrics(Group):
    """Where a server shows its metrics in the form of Prometheus: `MRTRServer(metrics=Metrics("/metrics"))`.

    They are those of this process alone. It needs the extra `prometheus`.

    Args:
        path: the path of the page.
        token: what a scraper must send, as `Authorization: Bearer ...`. Default: whoever names this server by an
            address, or by one of `allowed_hosts`, may read them.

    Raises:
        SetupError: one can't be right; the message says why.
    """

    path: str = "/metrics"
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path.startswith("/") or self.path.endswith("/"):
            raise SetupError(f"Metrics({self.path!r}) must start with a slash, and end without one")
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            raise SetupError("Metrics(token=...) must be a bearer token: letters, digits and -._~+/, without a space")


@dataclass(frozen=True)
class Settings(Group, Generic[Server]):
    """The settings of a server, checked. Raises `SetupError` if one can't be right."""

    name: str
    _: KW_ONLY
    info: ServerInfo = field(default=ServerInfo(), metadata=takes('ServerInfo(...), such as ServerInfo(version="1.2")'))
    instructions: str = ""
    path: str = "/mcp"
    keys: KeyRing | Sequence[bytes] | None = field(default=None, repr=False)
    audience: str | None = None
    auth: AuthenticationBackend | None = field(
        default=None,
        metadata=takes(
            'a Starlette AuthenticationBackend; for fixed tokens BearerTokens({"token": "user"})', has("authenticate")
        ),
    )
    authorize: Authorize | None = None
    scopes: Sequence[str] = field(default=(), metadata=takes(""))
    identify: Identify | None = field(default=None, metadata=takes("a function", callable))
    base_url: str | None = None
    codec: Codec | None = field(default=None, metadata=takes("a Codec, which seals and unseals", has("seal", "unseal")))
    store: Store | str | None = field(
        default=None,
        repr=False,
        metadata=takes(
            'the URL of a database, such as "sqlite:///mrtr.db", or an object of a class that is derived from Store',
            lambda value: isinstance(value, Store | str),
        ),
    )
    limits: Limits | None = field(default=None, metadata=takes("Limits(...), such as Limits(rounds=5)"))
    rate_limits: RateLimits | None = field(
        default=None, metadata=takes('RateLimits(...), such as RateLimits(per_principal="100/minute")')
    )
    dialects: Sequence[str] | None = None
    extensions: Mapping[str, Mapping[str, Any]] | None = field(
        default=None, metadata=takes('a dictionary, such as {"com.example/orders": {}}')
    )
    events: Events = field(default=Events(), metadata=takes("Events(...), such as Events(keep_seconds=3600)"))
    webhooks: Webhooks = field(
        default=Webhooks(), metadata=takes('Webhooks(...), such as Webhooks(proxy="http://proxy.example.com:3128")')
    )
    apps: Apps = field(default=Apps(), metadata=takes("Apps(...), such as Apps(question=True)"))
    unknown_arguments: Literal["refuse", "ignore"] = field(default="refuse", metadata=takes(""))
    lists: Lists = field(default=Lists(), metadata=takes("Lists(...), such as Lists(page_size=50)"))
    origins: Sequence[str] = ()
    allowed_hosts: Sequence[str] | None = None
    middleware: Sequence[Middleware] = field(
        default=(), metadata=takes("a list of Starlette's Middleware(Class, option=...)", several(Middleware))
    )
    telemetry: OpenTelemetry | bool | None = field(
        default=None, metadata=takes("True, False, or OpenTelemetry(tracer_provider=...)")
    )
    metrics: Metrics | None = field(default=None, metadata=takes('Metrics(...), such as Metrics("/metrics")'))
    docs: bool = False
    lifespan: Callable[[Server], AbstractAsyncContextManager[Any]] | None = field(
        default=None, metadata=takes("a function", callable)
    )
    shutdown: Shutdown = field(default=Shutdown(), metadata=takes("Shutdown(...), such as Shutdown(seconds=50)"))
    run_tasks: bool = True
    debug: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name:
            raise SetupError("MRTRServer needs a name")
        refuse_halves("MRTRServer", {"name": self.name, "instructions": self.instructions})
        if not self.path.startswith("/"):
            raise SetupError(f"path={self.path!r} must start with a slash")
        self._check_metrics()
        self._check_docs()
        for option in ("dialects", "origins", "allowed_hosts"):
            texts = getattr(self, option)
            if isinstance(texts, str):
                raise SetupError(f"{option}={texts!r} is one string; give a list: {option}=[{texts!r}]")
        BaseUrl(self.base_url)
        check_origins(self.origins)
        hosts_of("allowed_hosts", self.allowed_hosts or ())
        check_dialects(self.dialects)
        check_extensions(self.extensions or {})
        check_scopes("scopes", self.scopes)
        if self.unknown_arguments not in ("refuse", "ignore"):
            raise SetupError(f'unknown_arguments={self.unknown_arguments!r}: choose from "refuse", "ignore"')
        if isasyncgenfunction(self.lifespan):
            raise SetupError("lifespan= takes a context manager; put @asynccontextmanager before the function")

    def _check_metrics(self) -> None:
        path = None if self.metrics is None else self.metrics.path
        folder = self.path.rstrip("/").rpartition("/")[0]
        if path in (self.path.rstrip("/"), f"{folder}/health", f"{folder}/ready"):
            raise SetupError(f"metrics={path!r} is already used by another endpoint")
        check_telemetry(self.telemetry, shows_metrics=self.metrics is not None)

    def _check_docs(self) -> None:
        page = f"{self.path.rstrip('/').rpartition('/')[0]}/docs"
        if self.docs and page in (self.path.rstrip("/"), self.metrics and self.metrics.path):
            raise SetupError(f"docs=True serves the page at {page}, which is already used by another endpoint")
