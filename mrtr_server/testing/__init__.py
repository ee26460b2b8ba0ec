"""A test kit for servers: call tools with scripted answers, or walk their flows round by round.

    from mrtr_server.testing import Client, yes

    def test_a_deployment_asks_once() -> None:
        done = Client(app).call("deploy", service="shop", answers={"confirm": yes})
        assert done.text == "shop:1.4 is live"
        assert done.steps == ["build_image", "roll_out"]

It works with any test runner, in process or over HTTP, and needs nothing that the package itself does not.
"""

import sys as _sys
import typing as _typing

from ..renamed import renamed_in
from ..wire import Progress
from .answers import (
    Answer,
    Answerable,
    Answers,
    Asked,
    Unexpected,
    accept,
    cancel,
    decline,
    no,
    roots,
    sampled,
    slowly,
    yes,
)
from .apps import App, PageView
from .client import AsyncClient, Client
from .flow import Flow
from .replies import Error, Event, Reply, TaskView
from .servers import Clock, Log, SharedStore, replica, replicas, short_lease
from .session import EVERYTHING
from .streams import Notifications
from .webhooks import Sent, WebhookReceiver, new_secret, webhook_receiver

__all__ = [
    "EVERYTHING",
    "Answer",
    "Answerable",
    "Answers",
    "App",
    "Asked",
    "AsyncClient",
    "Client",
    "Clock",
    "Error",
    "Event",
    "Flow",
    "Log",
    "Notifications",
    "PageView",
    "Progress",
    "Reply",
    "Sent",
    "SharedStore",
    "TaskView",
    "Unexpected",
    "WebhookReceiver",
    "accept",
    "cancel",
    "decline",
    "new_secret",
    "no",
    "replica",
    "replicas",
    "roots",
    "sampled",
    "short_lease",
    "slowly",
    "webhook_receiver",
    "yes",
]

if _pytest := _sys.modules.get("pytest"):  # so that a failed promise shows the values; nothing here needs pytest
    _pytest.register_assert_rewrite(
        *(f"{__name__}.{each}" for each in ("contract", "event_store", "store", "task_store"))
    )

if not _typing.TYPE_CHECKING:
    __getattr__ = renamed_in(__name__, globals())
