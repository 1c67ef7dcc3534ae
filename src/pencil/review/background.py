"""Work that runs once in its own thread while the page is already shown."""

import threading
from collections.abc import Callable


class Background:
    """A function that runs once in a thread, on first use.

    Parameters
    ----------
    work
        Called once, in the thread.
    name
        Name of the thread.
    """

    def __init__(self, work: Callable[[], None], name: str):
        self._work, self._name = work, name
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the work, once."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Wait until the work is done."""
        self.start()
        assert self._thread is not None
        self._thread.join()
