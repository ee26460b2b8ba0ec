"""A test kit for servers: call tools with scripted answers, or walk their flows round by round.

    from mrtr_server.testing import Client, yes

    def test_a_deployment_asks_once() -> None:
        done = Client(app).call("deploy", service="shop", answers={"confirm": yes})
        assert done.text == "shop:1.4 is live"
        assert done.steps == ["build_image", "roll_out"]

It works with any test runner, in process or over HTTP, and needs nothing that the package itself does not.
"""

from .answers import Answer as Answer
from .answers import Answerable as Answerable
from .answers import accept as accept
from .answers import cancel as cancel
from .answers import decline as decline
from .answers import no as no
from .answers import roots as roots
from .answers import sampled as sampled
from .answers import slowly as slowly
from .answers import yes as yes
from .asked import Asked as Asked
from .client import AsyncClient as AsyncClient
from .client import Client as Client
from .events import Event as Event
from .failure import Unexpected as Unexpected
from .flow import Flow as Flow
from .notifications import Notifications as Notifications
from .observing import Log as Log
from .replies import Error as Error
from .replies import Progress as Progress
from .replies import Reply as Reply
from .replies import Task as Task
from .script import Answers as Answers
from .servers import Clock as Clock
from .servers import SharedStore as SharedStore
from .servers import replica as replica
from .servers import replicas as replicas
from .servers import short_lease as short_lease
from .wire import EVERYTHING as EVERYTHING
