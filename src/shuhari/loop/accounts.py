"""What a run spends and what goes wrong in it: the ledger, and the messages that its user is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from shuhari.ports import REPLAYING

MESSAGES = 5  # of a step: the first of them


class Accounts:
    """The accounts of a run. `ledger`: name -> amount; `problems`: the first messages of this step; `failed`: is told
    of each failure first, and may raise it; `muted`: nothing is charged, as what was spent is asked for again."""

    def __init__(self) -> None:
        self.ledger: dict[str, float] = {}
        self.problems: list[str] = []
        self.failed: Callable[[str, BaseException], object] = lambda what, error: None
        self.muted = False
        self._tag: ContextVar[str] = ContextVar("tag", default="")  # of the coroutine that spends

    def charge(self, what: str, amount: float) -> None:
        """To the ledger, under the tag of what goes on (probes and evaluation are paid for, and apart)."""
        if not self._repeats():
            what = self._tag.get() + what
            self.ledger[what] = self.ledger.get(what, 0) + amount

    @contextmanager
    def charging_to(self, tag: str) -> Iterator[None]:
        """Charge everything inside under `<tag>/`, within the tag that stands already."""
        before = self._tag.set(f"{self._tag.get()}{tag}/")
        try:
            yield
        finally:
            self._tag.reset(before)

    def record_failure(self, what: str, error: BaseException, whose: str = "") -> None:
        """Count a failure of user code and keep its message. Raises what `failed` does."""
        self.failed(what, error)
        self.charge(what, 1)
        place = "; ".join(vars(error).get("__notes__", ()))  # whose environment, which step
        message = f"{what}{f' ({whose})' if whose else ''}: {type(error).__name__}: {error}"
        message += f" ({place})" if place else ""
        if not self._repeats() and len(self.problems) < MESSAGES and message not in self.problems:
            self.problems.append(message)

    def _repeats(self) -> bool:
        return self.muted or REPLAYING.get()
