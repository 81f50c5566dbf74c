"""The process that Ray lives in, serving the run at the other end of the pipe (`rays_apart`).

It starts or joins Ray, and serves requests until the run ends it or the pipe closes. If a process of its Ray dies, it
reports that and ends, with what is left of that Ray.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

from shuhari.distributed.messages import LostWorkerError, pack, unpack, write_error

LOG = logging.getLogger("shuhari")
PULSE = 0.2  # seconds between two looks at Ray's processes
WORDS = {"put": "keep bytes in its object store", "hire": "begin an actor"}


class Server:
    """The objects kept by name: actors, bytes in the object store, and why one of them is missing."""

    def __init__(self, link: Connection) -> None:
        self.link, self.yard = link, None  # type: Connection, Any
        self.hands: dict[int, Any] = {}
        self.blobs: dict[int, Any] = {}
        self.missing: dict[int, str] = {}
        self._lock = threading.Lock()  # answers come from Ray's threads

    def say(self, told: Mapping[str, Any], data: bytes | None = None) -> None:
        try:
            with self._lock:
                self.link.send_bytes(pack({**told, "data": data is not None}))
                if data is not None:
                    self.link.send_bytes(data)
        except OSError:  # the run is gone: the end is heard where it is read
            pass

    def do(self, ask: Mapping[str, Any], data: bytes) -> None:
        """Carry out one request of the run."""
        name = ask["name"]
        if ask["do"] == "hire":
            self.hands[name] = self.yard.hire(ask["index"])
        elif ask["do"] == "put":
            self.blobs[name] = self.yard.put(data)
        elif ask["do"] == "free":
            self.blobs.pop(name, None)
            self.missing.pop(name, None)
        elif ask["do"] == "close":
            self.missing.pop(name, None)
            if (hand := self.hands.pop(name, None)) is not None:
                hand.close()
        elif why := next((self.missing[n] for n in (name, *ask.get("blobs", ())) if n in self.missing), ""):
            self.say({"ticket": ask["ticket"], "lost": why})
        elif ask["do"] == "tell":
            self.say({"ticket": ask["ticket"]}, self.hands[name].tell().encode())
        else:
            call = self.hands[name].send(ask["method"], data, [self.blobs[b] for b in ask["blobs"]])
            call.add_done_callback(lambda done: self.answer(ask["ticket"], done))

    def answer(self, ticket: int, done: Future[bytes]) -> None:
        error = done.exception()
        if error is None:
            self.say({"ticket": ticket}, done.result())
        elif isinstance(error, LostWorkerError):
            self.check()
            self.say({"ticket": ticket, "lost": str(error)})
        else:
            self.say({"ticket": ticket, "raised": write_error(error)})

    def check(self) -> None:
        """End this process if a process of Ray has ended, as the other actors are then lost too."""
        if why := self.yard.explain_loss():
            self.say({"gone": why})
            os._exit(1)  # Ray's core would wait for what is gone

    def serve(self) -> None:
        while True:
            if not self.link.poll(PULSE):
                self.check()
            elif not (told := self.link.recv_bytes()):
                return
            else:
                ask = unpack(told)
                data = self.link.recv_bytes() if ask["data"] else b""
                try:
                    self.do(ask, data)
                except Exception as error:  # of Ray, which is not there, or is missing what it was not given
                    self.check()
                    why = f"{type(error).__name__}: {error}"[:500]
                    if "ticket" in ask:
                        self.say({"ticket": ask["ticket"], "lost": why})
                        continue
                    LOG.warning("Ray could not %s: %s", WORDS.get(ask["do"], ask["do"]), why)
                    if ask["do"] in WORDS:  # whoever asks for it by its name is told
                        self.missing[ask["name"]] = f"Ray could not {WORDS[ask['do']]}: {why}"


def hand_on(server: Server) -> None:
    """Send the lines of this process's log to the run."""
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: server.say({"log": record.levelno, "text": record.getMessage()})  # type: ignore[method-assign]
    LOG.addHandler(handler)


def main(number: int) -> None:
    link = Connection(number)
    server = Server(link)
    hand_on(server)
    given = unpack(link.recv_bytes())
    from shuhari.distributed.rays import Rays

    os.chdir(given["folder"])  # Ray's workers would import from the current folder before all others
    try:
        server.yard = Rays(given["workers"], given["address"], given["folder"])
    except Exception as error:
        told = write_error(error)
        server.say({"error": told if told["where"] else {**told, "text": f"{told['kind']}: {told['text']}"}})
        return
    server.say({"ready": True})
    try:
        server.serve()
    except (EOFError, OSError):  # the run is gone
        pass
    finally:
        server.yard.close()
    shutil.rmtree(given["folder"], ignore_errors=True)  # the run, if it is still there, would


if __name__ == "__main__":
    main(int(sys.argv[1]))
