"""The rounds of one call, walked without I/O: which request is next, and where its result leaves the call.

A driver sends `next(answers)`, passes the result to `take`, and answers what is in `questions`, until `is_over`.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from ..errors import BadReply
from ..protocol.envelope import NAME_FIELDS
from ..protocol.messages import JSON

_SHORTEST_POLL, _USUAL_POLL, _LONGEST_POLL = 0.05, 1.0, 60.0
"""How long to wait before a task is looked at again, in seconds, whatever the server says."""


class Rounds:
    """One call of a tool, a prompt or a resource, from its first round to its result; as a task, if it becomes one.

    Args:
        method: the protocol's method.
        target: the tool's or prompt's name, or the resource's URI.
        arguments: of the tool or prompt.
        task: the id of the task that the call is already.
        most: how many questions one round may have.
    """

    def __init__(
        self,
        method: str,
        target: str,
        arguments: Mapping[str, Any],
        *,
        task: str | None = None,
        most: int = 50,
    ) -> None:
        self.method = method
        self.target = target
        self.arguments = dict(arguments)
        self.task = task
        self.state: str | None = None
        """What the next round continues from."""
        self.questions: JSON = {}
        """What is asked, as it came, by key."""
        self.pause = 0.0
        """How long to wait before the next request, in seconds."""
        self.is_over = False
        """Whether the last result is what the call came to."""
        self.answered: set[str] = set()
        """The keys of a task's questions that were answered."""
        self._most = most
        self._idle = 0

    def first(self) -> JSON:
        """Return the parameters of the first round."""
        params: JSON = {NAME_FIELDS[self.method]: self.target}
        if self.arguments or self.method == "tools/call":
            params["arguments"] = self.arguments
        return params

    def params(self, answers: Mapping[str, Any]) -> JSON:
        """Return the parameters of the next round."""
        params = self.first()
        if answers:
            params["inputResponses"] = answers
        if self.state is not None:
            params["requestState"] = self.state
        return params

    def about_task(self, method: str, **params: Any) -> tuple[str, JSON]:
        """Return a request about the task that the call has become."""
        return method, {"taskId": self.task, **params}

    def next(self, answers: Mapping[str, Any]) -> tuple[str, JSON]:
        """Return the method and the parameters of the next request; the result of `tasks/update` is nothing to take."""
        self.questions, self.pause = {}, 0.0
        if self.task is None:
            return self.method, self.params(answers)
        self.answered |= answers.keys()
        return self.about_task("tasks/update", inputResponses=answers) if answers else self.about_task("tasks/get")

    def take(self, result: JSON) -> None:
        """Note where the result of a round, or of a look at the task, leaves the call.

        Raises:
            BadReply: it means nothing that a client knows.
        """
        if self.task is not None:
            self._take_task(result)
            return
        match result.get("resultType", "complete"):
            case "complete":
                self.is_over = True
            case "input_required":
                self._take_round(result)
            case "task" if self.method == "tools/call" and isinstance(result.get("taskId"), str):
                self.task = result["taskId"]
            case _:
                raise BadReply("The result is of no kind that this client knows")

    def _take_round(self, result: JSON) -> None:
        self.questions, state = self._requests_in(result), result.get("requestState")
        if not isinstance(state, str | None) or (state is None and not self.questions):
            raise BadReply("The server wants another round, and says neither what it asks nor where it is")
        self.state = state
        self._idle = 0 if self.questions else self._idle + 1
        if self._idle > 1:  # the first time at once: another replica may continue
            self.pause = min(_SHORTEST_POLL * 2**self._idle, _USUAL_POLL)

    def _take_task(self, result: JSON) -> None:
        status = result.get("status")
        self.is_over = status not in ("working", "input_required")
        asked = self._requests_in(result) if status == "input_required" else {}
        self.questions = {key: each for key, each in asked.items() if key not in self.answered}
        if not self.questions:
            poll = number_of(result.get("pollIntervalMs"))
            self.pause = _USUAL_POLL if poll is None else min(max(poll / 1000, _SHORTEST_POLL), _LONGEST_POLL)

    def _requests_in(self, result: JSON) -> JSON:
        requests = result.get("inputRequests") or {}
        if not isinstance(requests, dict) or len(requests) > self._most:
            raise BadReply(f"The questions are none, or more than {self._most}")
        return requests


def number_of(value: Any) -> float | None:
    """Return a number that a server sent; None if it is none, or has no end."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) else None
