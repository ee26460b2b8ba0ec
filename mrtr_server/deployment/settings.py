"""What a server is made with; `MRTRServer` documents each where it is given."""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass, field
from inspect import isasyncgenfunction
from typing import Any, Generic, Literal, TypeVar, get_args

from starlette.authentication import AuthenticationBackend
from starlette.middleware import Middleware

from ..callbacks.base_url import BaseUrl, hosts_of
from ..crypto.codec import Codec
from ..crypto.keys import KeyRing
from ..errors import SetupError, check_scopes
from ..flow.authorization import Authorize
from ..given import KnowsGiven
from ..limits import Limits
from ..methods.discovery import Registered
from ..protocol.addresses import fault_of_page
from ..protocol.served_dialects import check_dialects
from ..rates.rate_limiter import RateLimits
from ..registration.option_types import SETTING_TYPES, check_types
from ..registration.options import Icons
from ..storage.base import Store
from ..storage.pubsub import Fanout
from ..telemetry.choice import OpenTelemetry
from ..telemetry.choice import check as check_telemetry
from ..transport.callback_pages import Identify
from ..transport.cors import check_origins
from ..well_formed import refuse_halves

Server = TypeVar("Server")


@dataclass(frozen=True)
class Settings(KnowsGiven, Generic[Server]):
    """The settings of a server, checked.

    Raises:
        SetupError: one can't be right; the message says why.
    """

    name: str
    _: KW_ONLY
    version: str = "0.0.0"
    title: str | None = None
    description: str | None = None
    instructions: str = ""
    website_url: str | None = None
    icons: Icons = ()
    path: str = "/mcp"
    keys: KeyRing | Sequence[bytes] | None = field(default=None, repr=False)
    audience: str | None = None
    auth: AuthenticationBackend | None = None
    authorize: Authorize | None = None
    scopes: Sequence[str] = ()
    identify: Identify | None = None
    base_url: str | None = None
    codec: Codec | None = None
    fanout: Fanout | None = None
    store: Store | None = None
    database: str | None = field(default=None, repr=False)
    limits: Limits | None = None
    rate_limits: RateLimits | None = None
    dialects: Sequence[str] | None = None
    unknown_arguments: Literal["refuse", "ignore"] = "refuse"
    registers_later: Collection[Registered] = ()
    page_size: int = 250
    list_ttl: float = 0.0
    list_scope: Literal["public", "private"] | None = None
    allowed_origins: Sequence[str] = ()
    allowed_hosts: Sequence[str] | None = None
    cors_origins: Sequence[str] = ()
    middleware: Sequence[Middleware] = ()
    telemetry: OpenTelemetry | bool | None = None
    metrics: str | None = None
    docs: bool = False
    lifespan: Callable[[Server], AbstractAsyncContextManager[Any]] | None = None
    lame_duck: float | None = None
    shutdown_seconds: float | None = None
    ready_needs_store: bool = False
    run_tasks: bool = True
    debug: bool = False
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        check_types(self, SETTING_TYPES)
        if not self.name:
            raise SetupError("MRTRServer needs a name")
        texts = ("name", "version", "title", "description", "instructions", "website_url", "icons")
        refuse_halves("MRTRServer", {text: getattr(self, text) for text in texts})
        if not self.path.startswith("/"):
            raise SetupError(f"path={self.path!r} must start with a slash")
        self._check_metrics()
        self._check_docs()
        if self.page_size < 1:
            raise SetupError("page_size must be at least 1")
        for option in ("dialects", "registers_later", "allowed_origins", "allowed_hosts", "cors_origins"):
            texts = getattr(self, option)
            if isinstance(texts, str):
                raise SetupError(f"{option}={texts!r} is one string; give a list: {option}=[{texts!r}]")
        self._check_addresses()
        check_dialects(self.dialects)
        check_scopes("scopes", self.scopes)
        if self.unknown_arguments not in ("refuse", "ignore"):
            raise SetupError(f'unknown_arguments={self.unknown_arguments!r}: choose from "refuse", "ignore"')
        if unknown := set(self.registers_later) - set(get_args(Registered)):
            raise SetupError(f"registers_later={unknown}: choose from {', '.join(get_args(Registered))}")
        if isasyncgenfunction(self.lifespan):
            raise SetupError("lifespan= takes a context manager; put @asynccontextmanager before the function")

    def _check_addresses(self) -> None:
        BaseUrl(self.base_url)
        if self.website_url is not None and (fault := fault_of_page(self.website_url)):
            raise SetupError(f"website_url={self.website_url!r} {fault}")
        for option in ("allowed_origins", "cors_origins"):
            check_origins(option, getattr(self, option))
        hosts_of("allowed_hosts", self.allowed_hosts or ())

    def _check_metrics(self) -> None:
        path = self.metrics
        if path is not None and (not path.startswith("/") or path.endswith("/")):
            raise SetupError(f"metrics={path!r} must start with a slash, and end without one")
        folder = self.path.rstrip("/").rpartition("/")[0]
        if path in (self.path.rstrip("/"), f"{folder}/health", f"{folder}/ready"):
            raise SetupError(f"metrics={path!r} is already used by another endpoint")
        check_telemetry(self.telemetry, path)

    def _check_docs(self) -> None:
        page = f"{self.path.rstrip('/').rpartition('/')[0]}/docs"
        if self.docs and page in (self.path.rstrip("/"), self.metrics):
            raise SetupError(f"docs=True serves the page at {page}, which is already used by another endpoint")
