"""`serve`: serves the policy of a run through OpenAI's protocol."""

from __future__ import annotations

from typing import Annotated

import typer

from shuhari.desk.cli.text import say


def serve(
    run: Annotated[str, typer.Argument(help="RUN, RUN@step or RUN@best, as in `export`; or a model's directory.")],
    host: Annotated[str, typer.Option(help="The address to listen at; beyond loopback a key is needed.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    key_env: Annotated[str, typer.Option(metavar="NAME", help="The environment variable that holds the key.")] = "",
    name: Annotated[str, typer.Option(help="The model's name in requests (default: of the run and the step).")] = "",
    role: Annotated[str, typer.Option(help="The role whose model is served.")] = "policy",
    slots: Annotated[int, typer.Option(min=1, help="Answers that are written at once.")] = 256,
    queue: Annotated[int, typer.Option(min=0, help="Answers that may wait behind them; beyond it: 503.")] = 1024,
    most: Annotated[int, typer.Option("--max-tokens", min=1, help="The longest answer, in tokens.")] = 4096,
    cache: Annotated[int, typer.Option(min=0, help="Tokens of the cache (default: a quarter of the memory).")] = 0,
    dtype: Annotated[str, typer.Option(help="Of the weights: float32, bfloat16, float16 (default: as they are).")] = "",
) -> None:  # fmt: skip
    """Serve the policy of a run, as OpenAI's chat completions and completions.

    It listens at 127.0.0.1 by default. Ctrl-C ends it.

    Example: shuhari serve latest@best --port 8000
    """
    import os

    from shuhari.desk.serving import running
    from shuhari.store import CheckpointError, StoreError

    running.check_installed()
    from shuhari.desk.serving.guard import is_loopback

    try:
        key = running.read_key(key_env, os.environ, host)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--key-env") from None
    try:
        at = running.listen(host, port)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (while")[0]
        raise typer.BadParameter(f"{host}:{port}: {why}; 0 takes one that is free", param_hint="--port") from None
    from shuhari.desk.serving.app import make_app
    from shuhari.desk.serving.worker import Worker

    with at:
        try:
            opened = running.open_policy(run, role)
            worker = Worker(opened.model, slots, queue, cache, most, dtype)
            worker.start()
        except CheckpointError:
            raise
        except (StoreError, ValueError, TypeError) as error:
            raise typer.BadParameter(str(error)) from None
        except KeyError as error:  # no such role
            raise typer.BadParameter(str(error.args[0]), param_hint="--role") from None
        served = name or opened.name
        where, shown = at.getsockname()[1], f"[{host}]" if ":" in host else host
        try:
            running.serve(
                make_app(worker, served, local=is_loopback(host), key=key),
                at,
                lambda: say(f"{served}: {opened.origin}, at http://{shown}:{where}/v1{', with a key' * bool(key)}"),
                key=key,
            )
        finally:
            worker.close()
    say("ended")
