"""A process that has imported everything and forks, on request, processes that run the command line.

Requests and answers are lines: `argv` as JSON -> the child's number -> its exit status, minus the signal where one
ended it. What children print goes to the file named first. Starting a process anew costs seconds of imports; a fork
costs none, and is a process like any other: it can be killed at any moment.
"""

import json
import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"

import matplotlib.pyplot  # noqa: F401
import torch
from transformers.models.llama import modeling_llama  # noqa: F401

import shuhari.desk.api  # noqa: F401
from shuhari.desk.cli import main
from shuhari.kernel.registry import entries


def serve(log: str) -> None:
    torch.set_num_threads(1)
    entries()
    print("ready", flush=True)
    last = 0
    for line in sys.stdin:
        if last:
            os.waitpid(last, 0)
        child = os.fork()
        if not child:
            run(json.loads(line), log)
        print(child, flush=True)
        end = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # its number stays its own until the next request
        assert end is not None
        print(-end.si_status if end.si_code == os.CLD_KILLED else end.si_status, flush=True)
        last = child


def run(argv: list[str], log: str) -> None:
    """Never returns."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(out, stream)
    os.close(0)
    status = 70
    try:
        main(argv)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1])
