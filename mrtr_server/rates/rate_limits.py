"""How often callers may call, as an operator says it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from ..errors import SetupError

WhileAway = Literal["count_here", "refuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """How often callers may call. It needs the extra `limits`.

    A rate is a text such as `"5/minute"`, `"100 per hour"` or `"10 per 30 seconds"`, of any span of that length. Beyond
    it, a request gets a 429 that says when there is room again, and nothing is done.

    A call of a tool, a prompt or a resource counts once, however many rounds it takes: when it begins. Its later rounds
    count for `per_flow`.

    Args:
        per_principal: calls of each authenticated caller, whatever application acts for them. A caller without
            authentication is known by its address.
        per_address: calls from each address: the one that the web server names as its client's. An address of IPv6
            counts with all others of its /64 network.
        per_tool: calls of each tool by each caller, by the name of the tool. It overrides `rate_limit=` of the tool.
        per_flow: rounds of one call that carry its state, whichever state that is; and how often the same request
            without a state, by the same caller, may be answered with a question. It counts as soon as anything has a
            rate.
        other_requests: of each caller, all that begins no call: lists, completions, later rounds, questions about tasks
            and subscriptions. Cancellations and pings are not counted.
        storage: where it is counted for all replicas together: the URL of a Redis or Valkey server, such as
            `redis://user:password@host:6379/0`; also `rediss://`, `redis+unix://`, `redis+cluster://` and
            `redis+sentinel://`. None to count in each process.
        while_away: what happens while that storage is unavailable. `"count_here"`: each process counts by itself.
            `"refuse"`: what has a limit is refused with a 503.

    Raises:
        SetupError: a rate or the URL can't be read, or a library is missing.
    """

    per_principal: str | None = None
    per_address: str | None = None
    per_tool: Mapping[str, str] = field(default_factory=dict)
    per_flow: str = "20/minute"
    other_requests: str | None = None
    storage: str | None = field(default=None, repr=False)
    while_away: WhileAway = "count_here"

    def __post_init__(self) -> None:
        from .counters import check_storage, read_rate  # which need a library that not everybody has

        for name in ("per_principal", "per_address", "per_flow", "other_requests"):
            text = getattr(self, name)
            if text is not None or name == "per_flow":
                read_rate(f"RateLimits({name}=...)", text)
        if not isinstance(self.per_tool, Mapping):
            raise SetupError('RateLimits(per_tool=...) takes a rate by the name of a tool: {"search": "5/minute"}')
        for tool, text in self.per_tool.items():
            read_rate(f"RateLimits(per_tool={{{tool!r}: ...}})", text)
        if self.while_away not in get_args(WhileAway):
            choices = ", ".join(f'"{each}"' for each in get_args(WhileAway))
            raise SetupError(f"RateLimits(while_away={self.while_away!r}): choose from {choices}")
        if self.storage is not None:
            check_storage(self.storage)
