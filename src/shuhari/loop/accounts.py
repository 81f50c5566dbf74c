"""The ledger of what a run spends, and the messages about what goes wrong in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from shuhari.ports import REPLAYING

MESSAGES = 5  # of a step: the first of them


class Accounts:
    """The accounts of a run. `ledger`: name -> amount; `problems`: the first messages of this step; `failed`: called
    first with each failure, and may raise it; `muted`: nothing is charged, while calls that were charged before are
    repeated."""

    def __init__(self) -> None:
        self.ledger: dict[str, float] = {}
        self.problems: list[str] = []
        self.failed: Callable[[str, BaseException], object] = lambda what, error: None
        self.muted = False
        self._tag: ContextVar[str] = ContextVar("tag", default="")  # of the coroutine that spends

    def charge(self, what: str, amount: float) -> None:
        """Add to the ledger, under the current tag (probes and evaluation are charged, under tags of their own)."""
        if not self._repeats():
            what = self._tag.get() + what
            self.ledger[what] = self.ledger.get(what, 0) + amount

    @contextmanager
    def charging_to(self, tag: str) -> Iterator[None]:
        """Charge everything inside under `<tag>/`, within the current tag."""
        before = self._tag.set(f"{self._tag.get()}{tag}/")
        try:
            yield
        finally:
            self._tag.reset(before)

    def record_failure(self, what: str, error: BaseException, whose: str = "") -> None:
        """Count a failure of user code and keep its message. Raises what `failed` raises."""
        self.failed(what, error)
        self.charge(what, 1)
        place = "; ".join(vars(error).get("__notes__", ()))  # whose environment, which step
        message = f"{what}{f' ({whose})' if whose else ''}: {type(error).__name__}: {error}"
        message += f" ({place})" if place else ""
        if not self._repeats() and len(self.problems) < MESSAGES and message not in self.problems:
            self.problems.append(message)

    def _repeats(self) -> bool:
        return self.muted or REPLAYING.get()
