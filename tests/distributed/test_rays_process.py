"""The process that Ray lives in, with a stand-in for Ray: what fails there is told, and nothing of it stays."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import pytest

from shuhari.distributed import rays, rays_process
from shuhari.distributed.messages import pack, unpack


class FullYard:
    """A stand-in for `Rays`, whose object store takes 3 bytes and which has one actor."""

    def __init__(self, *_: Any) -> None:
        self.hired = 0

    def put(self, data: bytes) -> bytes:
        if len(data) > 3:
            raise MemoryError("the object store is full")
        return data

    def hire(self, index: int) -> FullYard:
        self.hired += 1
        if self.hired > 1:
            raise RuntimeError("no node is left")
        return self

    def send(self, method: str, data: bytes, blobs: list[bytes]) -> Future[bytes]:
        out: Future[bytes] = Future()
        out.set_result(data + b"".join(blobs))
        return out

    def explain_loss(self) -> str:
        return ""

    def close(self) -> None:
        pass


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """The run's end of a process that serves in a thread here, with its files in `ray`."""
    monkeypatch.setattr(rays, "Rays", FullYard)
    monkeypatch.setattr(logging.getLogger("shuhari"), "handlers", [])
    monkeypatch.chdir(Path.cwd())  # the process goes to its own folder, which is removed: back in the end
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "log").touch()
    here, there = Pipe()
    served = threading.Thread(target=rays_process.main, args=(os.dup(there.fileno()),))
    there.close()
    served.start()
    tell(here, workers=1, address="10.0.0.1:6379", folder=str(tmp_path / "ray"))
    assert unpack(here.recv_bytes())["ready"]
    yield here
    here.close()
    served.join(30.0)
    assert not served.is_alive()


def tell(link: Connection, data: bytes | None = None, **ask: Any) -> None:
    link.send_bytes(pack({**ask, "data": data is not None}))
    if data is not None:
        link.send_bytes(data)


def hear(link: Connection) -> dict[str, Any]:
    assert link.poll(30.0)
    told: dict[str, Any] = unpack(link.recv_bytes())
    return {**told, "data": link.recv_bytes()} if told["data"] else told


def test_bytes_that_ray_could_not_keep_are_told_at_once_and_to_who_needs_them(link: Connection) -> None:
    tell(link, do="hire", name=0, index=0)
    tell(link, b"abcd", do="put", name=1)
    told = hear(link)
    assert told["log"] == logging.WARNING and told["text"].endswith("MemoryError: the object store is full")
    tell(link, b"ef", do="put", name=2)
    for ticket, blobs in enumerate([[2], [2, 1], []]):
        tell(link, b"x", do="send", name=0, method="reach", blobs=blobs, ticket=ticket)
    answers = {told["ticket"]: told for told in (hear(link) for _ in range(3))}
    assert answers[0]["data"] == b"xef" and answers[2]["data"] == b"x"
    assert answers[1]["lost"] == "Ray could not keep bytes in its object store: MemoryError: the object store is full"
    tell(link, do="free", name=1)
    tell(link, b"x", do="send", name=0, method="reach", blobs=[1], ticket=3)
    assert hear(link)["lost"] == "KeyError: 1"


def test_an_actor_that_ray_could_not_begin_is_lost_in_the_words_of_ray(link: Connection) -> None:
    tell(link, do="hire", name=0, index=0)
    tell(link, do="hire", name=1, index=1)
    assert hear(link)["text"] == "Ray could not begin an actor: RuntimeError: no node is left"
    tell(link, b"x", do="send", name=1, method="begin", blobs=[], ticket=0)
    assert hear(link)["lost"] == "Ray could not begin an actor: RuntimeError: no node is left"
    tell(link, do="tell", name=1, ticket=1)
    assert "no node is left" in hear(link)["lost"]
    for name in (1, 1, 7):  # what is not there is closed without a word
        tell(link, do="close", name=name)
    tell(link, b"x", do="send", name=0, method="play", blobs=[], ticket=2)
    assert hear(link)["data"] == b"x"


def test_of_a_run_that_is_gone_no_folder_stays(link: Connection, tmp_path: Path) -> None:
    """As after SIGKILL: the end of the pipe is all that is heard of it. The cluster was joined, and removes nothing."""
    assert (tmp_path / "ray" / "log").is_file()
    link.close()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(30.0)
    assert not (tmp_path / "ray").exists()
