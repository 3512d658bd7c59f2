"""The event loop policy, for programs that take their loops from one.

Policies are deprecated in Python 3.14 and gone in 3.16: prefer
pyfastnet.run(), or pyfastnet.new_event_loop as a loop factory.
"""

import asyncio
from asyncio import unix_events

from .loop import EventLoop


class EventLoopPolicy(unix_events._UnixDefaultEventLoopPolicy):
    """asyncio's default policy, with EventLoop as the loop that it makes.

        asyncio.set_event_loop_policy(pyfastnet.EventLoopPolicy())

    On Python 3.16 and later there is no such class.
    """

    _loop_factory = EventLoop


def install() -> None:
    """Makes asyncio.run() and asyncio.new_event_loop() use pyfastnet, by
    setting the policy of the process.

    Call it once, early, before a loop is made.  Prefer pyfastnet.run():
    Python 3.14 warns that policies are deprecated, and on 3.16 this function
    does not exist.
    """
    asyncio.set_event_loop_policy(EventLoopPolicy())
