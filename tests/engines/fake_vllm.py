"""Answers as `vllm_child.py` does, without vLLM: run by `-I`, with what vLLM itself once said beside it.

A request that was recorded (`vllm_said.json`: requests and replies of vLLM 0.32) gets the recorded reply. Any other
"generate" says ids that are a function of its seed and place, each with the log-probability of the version of the
weights, -version / 8. A file `mood` beside the weights tells it, word by word, to `die`, to `fail` an update, to be
`mute`, to say `bare` tokens without a version, to `hold` an answer until it is called off with two tokens of it, to do
`well`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def canonical(request: dict[str, Any]) -> str:
    return json.dumps({k: v for k, v in request.items() if k != "id"}, sort_keys=True)


def main() -> None:
    recorded = {canonical(q): a for q, a in json.loads(Path(__file__).with_name("vllm_said.json").read_text())}
    first = json.loads(sys.stdin.readline())
    folder, version = Path(first["folder"]), int(first["version"])
    mood = folder.parent / "mood"

    def say(reply: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()

    def take(what: str) -> bool:
        if mood.is_file() and (words := mood.read_text().split())[:1] == [what]:
            rest = mood.with_suffix(".new")
            rest.write_text(" ".join(words[1:]))
            rest.replace(mood)  # in one step: a test that waits for an empty file never sees half of a write
            return True
        return False

    def answer(request: dict[str, Any], size: int) -> None:
        tokens = [2 + (request["seed"] + len(request["ids"]) + i) % 5 for i in range(size)]
        versions = [] if take("bare") else [[str(version), 0, len(tokens)]]
        logp = [-version / 8] * len(tokens)
        say({"id": request["id"], "tokens": tokens, "logp": logp, "versions": versions, "stopped": False})

    print(f"serving {first['model']} with {sorted(first['engine'])}", file=sys.stderr, flush=True)
    if take("refuse"):
        say({"error": "ValueError: Model architectures ['Odd'] are not supported for now."})
        return
    say({"ready": True, "vllm": "fake"})
    held = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "cancel":
            for which in request["which"]:
                if which in held:
                    answer(held.pop(which), 2)
            continue
        if take("hold"):
            held[request["id"]] = request
            continue
        well = take("well")
        if not well and take("die"):
            print("out of memory, said the fake", file=sys.stderr, flush=True)
            return
        if take("mute"):
            continue
        if request["do"] == "update":
            if take("fail"):
                say({"id": request["id"], "error": "RuntimeError: no such weights", "fatal": False})
                continue
            assert (Path(request["path"]) / "model.safetensors").is_file()
            version = int(request["version"])
            say({"id": request["id"], "seconds": 0.0})
        elif (known := recorded.get(canonical(request))) is not None:
            say({**known, "id": request["id"]})
        elif request["do"] == "generate":
            answer(request, request["max"])
        else:
            say({"id": request["id"], "error": f"ValueError: not recorded: {request['do']}", "fatal": False})


if __name__ == "__main__":
    main()
