"""Plain functions beside the event loop."""

import asyncio
import threading

from mrtr_server.threads import Threads


class TestOneServerOnSeveralEventLoops:
    """As where a test's server ends while the next test begins, or an application is served twice."""

    def test_one_that_ends_takes_no_call_of_another_with_it(self) -> None:
        threads = Threads(2)
        over = threading.Event()

        def end_again_and_again() -> None:
            while not over.is_set():
                threads.close()

        async def call() -> int:
            return sum([await threads(lambda: 1) for _ in range(500)])

        other = threading.Thread(target=end_again_and_again)
        other.start()
        try:
            assert asyncio.run(call()) == 500
        finally:
            over.set()
            other.join()
            threads.close()
