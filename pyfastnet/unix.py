"""What asyncio's own loop for Unix does and any loop with its hooks can."""

from asyncio import unix_events
from typing import Any

from .base import BaseLoop

_UnixLoop: Any = unix_events._UnixSelectorEventLoop


class Unix(BaseLoop):
    # A function of a class that this one does not derive from: it uses
    # nothing but methods of the loop.
    create_unix_connection = _UnixLoop.create_unix_connection
