"""More requests of scripts/fuzz: ids that are forged, of somebody else or in a wrong place, and must not open."""

from collections.abc import Callable
from random import Random

from fuzz_requests import HANDSHAKES, KINDS, OPEN, USERS, Request, Requests, dump


class AllRequests(Requests):
    """Makes requests as `Requests` does, and ones with ids that must not open.

    Args:
        random: decides everything.
        servers: as for `Requests`.
    """

    def __init__(self, random: Random, servers: dict[str, tuple[bool, bool]]) -> None:
        super().__init__(random, servers)
        self._makers += [(self._wrong_id, 16), (self._wrong_task, 4), (self._wrong_cursor, 3)]

    def _wrong_id(self) -> Request:
        """Return a request with an id that is forged, of another user or server, or of another kind."""
        random = self._random
        place = random.choice(("question", "event", "session", "state"))
        kind = place if random.random() < 0.7 else random.choice(KINDS)
        found = self._any(kind)
        if found is None or (kind != place and kind in ("task", "cursor") and place == "state"):
            return self._right()
        id, user, server, how = found.id, found.user, found.server, "of another kind"
        if kind == place:
            how = random.choice(("forged", "user", "server"))
            if how == "user" and server != OPEN:
                user = random.choice([each for each in USERS if each != user])
            elif how == "server":
                server = random.choice([each for each in self._servers if each != server])
                user = "" if server == OPEN else user or USERS[0]
            else:
                id = self._forged(id)
        what = f"{kind} as {place}, {how}"
        modern, handshake = self._servers[server]
        if place == "state":
            state = self._any("state")
            if state is None or not modern:
                return self._own()
            request = self._retry(found if kind == place else state, user, server, id)
            request.check = _expects(-32602, "the state")
        elif not handshake:
            return self._right()
        elif place == "question":
            request = self._answer_to(id, user, server)
            request.check = lambda status, body: "" if status == 400 else f"the answer was taken: {status}"
        elif place == "event":
            request = self._resume_at(id, user, server)
            request.check = lambda status, body: "" if status == 405 else f"the stream was opened: {status}"
        else:
            request = Request(server, user, body=dump(self._message("resources/subscribe", {"uri": "notes://1"})))
            request.headers = {"mcp-session-id": id, "mcp-protocol-version": HANDSHAKES[0]}
            request.check = _expects(-32602, "the session")
        request.what = what
        return request

    def _wrong_task(self) -> Request:
        """Return a request about a task that is another user's, or none."""
        task = self._any("task")
        if task is None:
            return self._right()
        id, user = task.id, task.user
        if task.server != OPEN and self._random.random() < 0.7:
            user = self._random.choice([each for each in USERS if each != user])
        else:
            id = self._forged(id)
        request = self._about(id, user, task.server)
        request.what, request.call = f"{request.what}, of another user or forged", ("", {})
        request.check = lambda status, body: "" if b'"result"' not in body else f"a task was shown: {body[:200]!r}"
        return request

    def _wrong_cursor(self) -> Request:
        """Return a request for a page that follows a cursor that is forged, or that is of another list."""
        random, cursor = self._random, self._any("cursor")
        if cursor is None or not self._servers[cursor.server][0]:
            return self._right()
        lists = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
        if random.random() < 0.5:
            method, id = cursor.call[0], self._forged(cursor.id)
        else:
            method, id = random.choice([each for each in lists if each != cursor.call[0]]), cursor.id
        request = Request(cursor.server, cursor.user, what=f"cursor, forged or of another list, for {method}")
        message = self._message(method, {"cursor": id})
        self._make_modern(message, request)
        refused = -32601 if method == "tasks/list" else -32602  # there is no such list in today's version
        request.body, request.check = dump(message), _expects(refused, "the cursor")
        return request

    def _forged(self, id: str) -> str:
        random = self._random
        kept = ""
        if id[:3] in ("eyJ", "e30") and "." in id:  # a state that begins with what was asked, which need not be genuine
            kept, dot, id = id.partition(".")
            kept += dot
        sealed, dot, sent = id.rpartition(".") if "." in id else (id, "", "")
        at = random.randrange(len(sealed))
        match random.randrange(5):
            case 0:
                sealed = sealed[:at] + random.choice([c for c in "AB" if c != sealed[at]]) + sealed[at + 1 :]
            case 1:
                sealed = sealed[:at]
            case 2:
                sealed += random.choice("AQ=.-_")
            case 3:
                sealed = sealed[:at] + sealed[at + 1 :]
            case _:
                other = self._any(random.choice(KINDS))
                sealed = sealed[: at or 1] + ("A" if other is None or len(other.id) <= at else other.id[at:]) + "x"
        forged = f"{sealed}{dot}{sent}"
        return kept + forged if forged != id else "x"


def _expects(code: int, what: str) -> Callable[[int, bytes], str]:
    def check(status: int, body: bytes) -> str:
        return "" if b'"code":%d' % code in body else f"{what} was taken: {status} {body[:200]!r}"

    return check
