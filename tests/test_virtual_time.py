"""The simulated time of the tests (`support/virtual_time.py`): it never passes because threads are slow."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .support.virtual_time import VirtualTime


class SlowToEnd(ThreadPoolExecutor):
    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        time.sleep(0.1)
        super().shutdown(*args, **kwargs)


def test_stands_still_while_the_threads_of_a_loop_end(virtual_time: VirtualTime) -> None:
    async def use_a_thread() -> None:
        asyncio.get_running_loop().set_default_executor(SlowToEnd())
        await asyncio.to_thread(int)

    before = virtual_time.now
    virtual_time.run(use_a_thread())
    assert virtual_time.now == before
