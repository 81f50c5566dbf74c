"""The program of a worker's process: a `Player` behind messages. It is independent of Ray, so that other transports can
share it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shuhari.distributed.messages import pack, unpack, write_error
from shuhari.distributed.player import Player
from shuhari.kernel.begin import look_there
from shuhari.loop.outside import compute_digests


class Work:
    """The calls that a worker serves; each takes a message and returns one."""

    def __init__(self) -> None:
        self.player: Player | None = None
        self.failed: dict[str, Any] | None = None
        self._turns: dict[int, dict[int, asyncio.Future[None]]] = {}
        self._begun = asyncio.Event()  # calls need not come in the order in which they were made

    async def begin(self, message: bytes) -> bytes:
        """Build the components of the run, and return {pid, node} or {error}."""
        given = unpack(message)
        try:
            _see(given["folder"], given["places"])
            _check_outside(given["outside"])
            self.player = Player(given["name"], given["tree"], given["held"], given["threads"])
        except Exception as error:
            self.failed = write_error(error)
            return pack({"error": self.failed})
        finally:
            self._begun.set()
        return pack({"pid": os.getpid(), "node": socket.gethostname()})

    async def reach(self, message: bytes, blobs: Sequence[bytes]) -> bytes:
        """Load weights; see `Player.reach`."""
        await self._begun.wait()
        if self.player is not None:
            try:
                await self.player.reach(blobs=blobs, **unpack(message))
            except Exception as error:
                self.failed = write_error(error)
                self.player.give_up()
        return b""

    async def play(self, message: bytes) -> bytes:
        """Play a group (see `Player.play`); the answer is `unfit` if there are no components or no weights to play it
        with."""
        await self._begun.wait()
        ask = unpack(message)
        if self.player is not None:
            await self.player.wait_for(ask["serial"])
            await self._gather(*ask["turn"])
        if self.failed is not None or self.player is None:
            return pack({"unfit": self.failed})
        answer = await self.player.play(ask)
        try:
            return pack(answer)
        except TypeError as error:
            why = f"what it gives cannot be sent: {error}"
            return pack({"refused": why, "spent": answer["spent"], "problems": []})

    async def _gather(self, turn: int, rank: int, n: int) -> None:
        """Wait until all `n` calls of one turn are here; then they go on in the order of their ranks."""
        here = self._turns.setdefault(turn, {})
        here[rank] = asyncio.get_running_loop().create_future()
        if len(here) == n:
            del self._turns[turn]
            for _, one in sorted(here.items()):
                if not one.done():
                    one.set_result(None)
        await here[rank]

    async def drop(self, message: bytes) -> bytes:
        """Cancel a group."""
        await self._begun.wait()
        if self.player is not None:
            self.player.drop(unpack(message)["number"])
        return b""


def _see(folder: str, places: Mapping[str, Any]) -> None:
    """Set up imports and files as in the run: its folder, and its search places."""
    if Path(folder).is_dir():
        os.chdir(folder)
    look_there(places)


def _check_outside(outside: Mapping[str, Sequence[str]]) -> None:
    """Raise FileNotFoundError or ValueError if a file that the recipe names is missing here or not the same: name ->
    (path, digest)."""
    for name, (path, digest) in outside.items():
        node = socket.gethostname()
        if not Path(path).exists():
            raise FileNotFoundError(f"{path} ({name}) is not on {node}: put it there, or on a disk of all nodes")
        if compute_digests({name: Path(path)})[name] != digest:
            raise ValueError(f"{path} ({name}) differs between {node} and the machine of the run: make them the same")
