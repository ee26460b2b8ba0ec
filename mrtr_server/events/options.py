"""How events are kept and delivered: `MRTRServer(events=Events(...), webhooks=Webhooks(...))`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import SetupError
from ..fields import POSITIVE_SECONDS, Group, takes

DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Webhooks(Group):
    """How events are sent to webhooks: `MRTRServer(webhooks=Webhooks(allow=["hooks.internal.example.com"]))`.

    A webhook is at an https address that anybody on the internet could reach, unless it is allowed here. It needs
    the extra `auth`.

    Args:
        offered: whether clients may subscribe webhooks at all.
        allow: hosts of your own that need not be reachable from the internet: names, names with a port, networks such
            as `"10.1.0.0/16"`, or origins. `"http://127.0.0.1:9000"` allows http on this machine, for tests.
        proxy: the address of the proxy through which requests leave your network, such as
            `"http://proxy.example.com:3128"`. It must refuse internal addresses itself, since it looks names up.
        ca: the path of a PEM file with further certificate authorities, such as your company's own.
        most_seconds: how long a subscription lasts at most without being renewed, in seconds; at least a minute.
            Without a database, it is half an hour at most.
        endless: whether a client gets a subscription without an end that asks for one. It needs a database, and
            `authorize=` of the server or of the event or `admits=` of the event, which are asked before each delivery.

    Raises:
        SetupError: one can't be right; the message says why.
    """

    offered: bool = True
    allow: Sequence[str] = ()
    proxy: str | None = field(default=None, repr=False)  # it may have a password
    ca: str | None = None
    most_seconds: float = field(default=DAY, metadata=takes(POSITIVE_SECONDS))
    endless: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 60 <= self.most_seconds <= DAY:
            raise SetupError(
                f"Webhooks(most_seconds={self.most_seconds:g}) must be from 60 to {DAY:g}: whoever lost access, or "
                "was never there again, would get events for too long"
            )
        if self.allow or self.proxy is not None or self.ca is not None:
            from ..fetcher import Fetcher  # only where there is something to check

            Fetcher(allow=self.allow, proxy=self.proxy, ca=self.ca)


@dataclass(frozen=True, kw_only=True)
class Events(Group):
    """How events are kept and delivered: `MRTRServer(events=Events(keep_seconds=3600))`.

    Args:
        keep_seconds: how long an event can be read, in seconds. An `id` counts once for as long as its event is there.
        keep_most: how many events of each type can be read, the newest ones.
        tasks: whether clients are offered events of their own tasks: that one asks something, or has ended. Default:
            where the server declares a type of event, or waits.
        poll_seconds: how long clients that poll are to wait before they poll again, in seconds.

    Raises:
        SetupError: one can't be right; the message says why.
    """

    keep_seconds: float = field(default=DAY, metadata=takes(POSITIVE_SECONDS))
    keep_most: int = field(default=10_000, metadata=takes("a number of events"))
    tasks: bool | None = None
    poll_seconds: float = field(default=30.0, metadata=takes(POSITIVE_SECONDS))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_most < 1:
            raise SetupError("Events(keep_most=...) must be at least 1")
