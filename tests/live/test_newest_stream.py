"""Of a session's streams the newest tells, whatever announcements are missed or come late."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from mrtr_server.live.session_states import NewestStream
from mrtr_server.protocol.messages import Change


class Fleet:
    """Streams of one session, each at its own replica. As in a listener, the newest note takes the place of others."""

    def __init__(self) -> None:
        self.open: list[NewestStream] = []
        self.waiting: dict[NewestStream, str] = {}

    def begin(self) -> None:
        self.open.append(NewestStream("session", self.publish))
        self.open[-1].open()

    def end(self, which: int) -> None:
        if self.open:
            self.open.pop(which % len(self.open)).end()

    def publish(self, change: Change) -> None:
        self.waiting |= dict.fromkeys(self.open, change.note)

    def deliver(self, which: int) -> None:
        waiting = [stream for stream in self.waiting if stream in self.open]
        if waiting:
            stream = waiting[which % len(waiting)]
            stream.on_announcement(self.waiting.pop(stream))

    def miss(self, which: int) -> None:
        """Lose the connection that carries the announcements: each stream hears that some were missed."""
        self.waiting |= dict.fromkeys(self.open, "")

    def settle(self) -> None:
        for _ in range(1_000):
            if not any(stream in self.open for stream in self.waiting):
                return
            self.deliver(0)
        raise AssertionError("they never come to rest")


STEPS: list[Callable[[Fleet, int], None]] = [
    lambda fleet, _: fleet.begin(),
    Fleet.end,
    Fleet.deliver,
    Fleet.deliver,
    Fleet.miss,
]


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 7)), max_size=60))
def test_all_agree_on_the_newest_that_is_open(steps: list[tuple[Callable[[Fleet, int], None], int]]) -> None:
    fleet = Fleet()
    for step, which in steps:
        step(fleet, which)
    fleet.settle()
    assert [stream.is_newest for stream in fleet.open] == [stream is fleet.open[-1] for stream in fleet.open]
