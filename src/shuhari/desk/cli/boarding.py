"""`board`: runs, rollouts and claims in a browser, or the content of one of its pages as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shuhari.desk.cli.options import check_together
from shuhari.desk.cli.text import note, print_json, say

READS = {"": "--host --port --key-env --require-token", "--json": "PAGE"}


def board(
    ctx: typer.Context,
    page: Annotated[str, typer.Argument(help="With --json: of which page, such as runs or run?run=latest.")] = "runs",
    root: Annotated[Path, typer.Option(help="The folder that holds the runs.")] = Path("runs"),
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 6060,
    key_env: Annotated[
        str, typer.Option(metavar="NAME", help="The environment variable that holds the token (default: a new one).")
    ] = "",
    require_token: Annotated[
        bool, typer.Option("--require-token", help="As beyond loopback, behind a proxy on this machine.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print what a page says as JSON, and serve nothing.")] = False,
) -> None:
    """Look at runs, rollouts and claims in a browser. Nothing is loaded from other sites.

    It listens at 127.0.0.1 by default. The address that it prints contains a token, unless --key-env gives one: changes
    need it, and beyond loopback everything does. Ctrl-C ends it.

    Example: shuhari board --port 6060
    """
    check_together(ctx, READS)
    if not root.is_dir() and root != Path("runs"):
        raise typer.BadParameter(f"{root}: expected a folder that holds runs", param_hint="--root")
    if json:
        print_json(read_page(page, root))
        return
    import os
    import secrets
    from threading import Thread

    from shuhari.desk.serving.running import check_installed, listen, read_key, serve

    check_installed("board")
    from shuhari.desk.board.app import find_plotly, make_app
    from shuhari.desk.board.catalogue import Catalogue
    from shuhari.desk.board.results import preload
    from shuhari.desk.serving.guard import is_loopback

    try:
        key = read_key(key_env, os.environ, host) if key_env else secrets.token_urlsafe(24)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--key-env") from None
    find_plotly()
    if told := Catalogue(root).explain_left_out():
        note(told)
    Thread(target=preload, daemon=True).start()
    try:
        at = listen(host, port)
    except OSError as error:
        why = f"{host}:{port}: {error.strerror or error}; 0 takes any that is free"
        raise typer.BadParameter(why, param_hint="--port") from None
    name = f"[{host}]" if ":" in host else host
    behind = f" (behind it #token= and what {key_env} holds)" if key_env else f"#token={key}"  # no key in a log
    address = f"http://{name}:{at.getsockname()[1]}/{behind}"
    local = is_loopback(host) and not require_token
    serve(make_app(root, key, local=local), at, lambda: say(f"the board of {root}/: {address}"), grace=1, key=key)


def read_page(page: str, root: Path) -> object:
    """Return the content of a page as plain values; a page is an address below /api, such as `run?run=latest`."""
    from inspect import signature
    from urllib.parse import parse_qs

    from shuhari.data import nearest
    from shuhari.desk.board.asking import read_query
    from shuhari.desk.board.catalogue import Catalogue
    from shuhari.desk.board.views import VIEWS
    from shuhari.desk.board.views.picture import Picture
    from shuhari.desk.plain import read_plain, to_finite
    from shuhari.desk.serving.refusals import Refused

    name, _, query = page.partition("?")
    if name not in VIEWS:
        raise typer.BadParameter(f"{name!r}: {nearest(name, VIEWS)}", param_hint="PAGE")
    view = VIEWS[name]
    given = parse_qs(query, keep_blank_values=True)
    if "wait" in signature(view).parameters:
        given.setdefault("wait", ["true"])
    try:
        found = view(Catalogue(root), **read_query(view, given))
    except Refused as refused:
        raise typer.BadParameter(str(refused), param_hint="PAGE") from None
    if isinstance(found, Picture):
        raise typer.BadParameter(f"{name} is a picture, which the address /api/{name} gives", param_hint="PAGE")
    return to_finite(found, read_plain)
