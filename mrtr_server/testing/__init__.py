"""A test kit for servers: call tools with scripted answers, or walk their flows round by round.

    from mrtr_server.testing import Client, yes

    def test_a_deployment_asks_once() -> None:
        done = Client(app).call("deploy", service="shop", answers={"confirm": yes})
        assert done.text == "shop:1.4 is live"
        assert done.steps == ["build_image", "roll_out"]

It works with any test runner, in process or over HTTP, and needs nothing that the package itself does not.
"""

from .answers import Answer, Answerable, accept, cancel, decline, no, roots, sampled, slowly, yes
from .asked import Asked
from .client import AsyncClient, Client
from .events import Event
from .failure import Unexpected
from .flow import Flow
from .inside import Log
from .notifications import Notifications
from .replies import Error, Progress, Reply, Task
from .script import Answers
from .servers import Clock, SharedStore, replica, replicas, short_lease
from .wire import EVERYTHING

__all__ = [
    "EVERYTHING",
    "Answer",
    "Answerable",
    "Answers",
    "Asked",
    "AsyncClient",
    "Client",
    "Clock",
    "Error",
    "Event",
    "Flow",
    "Log",
    "Notifications",
    "Progress",
    "Reply",
    "SharedStore",
    "Task",
    "Unexpected",
    "accept",
    "cancel",
    "decline",
    "no",
    "replica",
    "replicas",
    "roots",
    "sampled",
    "short_lease",
    "slowly",
    "yes",
]
