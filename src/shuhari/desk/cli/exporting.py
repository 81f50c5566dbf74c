"""`export`: writes the model of a run for use elsewhere."""

from __future__ import annotations

from json import loads
from pathlib import Path
from typing import Annotated

import typer

from shuhari.desk.cli.options import check_together
from shuhari.desk.cli.text import describe, print_json, say

READS = {
    "": "--role --dtype --shard --adapter --reward-model --force --json",
    "--replay": "--place --json",
    "--onnx": "--role --force --json",
}


def export(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(help="RUN, RUN@step or RUN@best; a path, a name under runs/, or `latest`.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the model goes: new, or empty.")],
    role: Annotated[str, typer.Option(help="The role whose model is written.")] = "policy",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16 (default: as trained, float32).")] = "",
    shard: Annotated[str, typer.Option(help="The largest file of weights, as 500MB or 2GB.")] = "5GB",
    adapter: Annotated[
        bool, typer.Option("--adapter", help="LoRA adapters alone, for peft (default: merged).")
    ] = False,
    reward_model: Annotated[
        bool, typer.Option("--reward-model", help="Its value head, as a classifier of transformers (texts or tokens).")
    ] = False,
    replay: Annotated[bool, typer.Option("--replay", help="Write the replay buffer's rows, as a data set.")] = False,
    place: Annotated[str, typer.Option(help="Which replay buffer, where the run has several.")] = "",
    onnx: Annotated[
        bool, typer.Option("--onnx", help="A controller as a file of ONNX, DIR/policy.onnx or the *.onnx given.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is in DIR.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a trained model: a language model as a Hugging Face directory, any other as safetensors and JSON.

    With --replay it writes the rows of the run's replay buffer instead, with --onnx the graph of a controller.

    Example: shuhari export latest@best models/sums --dtype bfloat16
    """
    from shuhari.desk.export import export as exported
    from shuhari.desk.export import export_replay
    from shuhari.store import CheckpointError, Run, StoreError
    from shuhari.store.directory import find_checkpoint

    check_together(ctx, READS)
    try:
        if replay:
            card = loads((export_replay(run, directory, place=place) / "card.json").read_text())
            if json:
                print_json(card)
            else:
                say(f"{directory}: {describe(card)}")
                say(f'load: buffer = {{use = "offline", data = {{use = "file", path = "{directory}"}}}}')
            return
        if onnx:
            from shuhari.desk.onnx import export_onnx

            card = export_onnx(run, directory, role=role, force=force)
            if json:
                print_json(card)
            else:
                say(f"{card['path']}: {card['role']} of step {card['step']}; {', '.join(card['inputs'])} -> "
                    f"{', '.join(card['outputs'])}; {card['checked']}")  # fmt: skip
            return
        what = {"adapter": adapter, "reward_model": reward_model}
        done = exported(run, directory, role=role, dtype=dtype, shard=shard, force=force, **what)
    except CheckpointError:
        raise
    except (StoreError, ValueError, FileExistsError, ModuleNotFoundError) as error:
        raise typer.BadParameter(str(error)) from None
    if json:
        kept = {"path": done.path, "kind": done.kind, "role": done.role, "step": done.step}
        print_json({**kept, "files": done.files, "load": done.use})
        return
    size = sum(done.files.values())
    say(f"{done.path}: {done.role} of step {done.step}, {len(done.files)} files, {size / 2**20:,.1f} MiB")
    say(f"load: {done.use}")
    if run.endswith("@best"):
        there = Run(find_checkpoint(run)[0]).checkpoints()
        scored = [c for c in there if c["score"] is not None]
        more = " (evaluate.every asks for more)" if len(scored) == 1 else ""
        say(f"best: of {len(scored)} kept checkpoint{'s' * (len(scored) != 1)} with a full evaluation{more}")
    if done.kind == "controller":
        say(f"its layers are described in {done.path / 'model.json'}; to act: shuhari.load({run!r}).act(observation)")
