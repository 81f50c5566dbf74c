"""Options that say nothing together are refused; so is a line that lacks something, with what helps."""

from __future__ import annotations

import pytest
import typer

from shuhari.desk.cli.options import check_together


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("plan r --mode sync --split 2", "--split: it is not read with --mode sync"),
        ("plan r --here --devices 4", "--devices: it is not read with --here"),
        ("plan r --published", "RUN: it is not read with --published"),
        ("doctor r --cluster", "RUN and --cluster exclude each other"),
        ("doctor --address auto", "--address: of --cluster, which is not given"),
        ("doctor --repair", "--repair: of RUN, which is not given"),
        ("show r --profile --csv", "--csv: it is not read with --profile"),
        ("show r --step 3", "--step: of --rollouts or --video or --samples, which is not given"),
        ("show r --rollouts --samples", "--rollouts and --samples exclude each other"),
        ("claim --dry-run --show rlvr/pacs", "--show and --dry-run exclude each other"),
        ("board rollouts", "PAGE: of --json, which is not given"),
        ("board --root nosuch", "nosuch: expected a folder that holds runs"),
        ("claim rlvr/pacs --board beds/trie/twins", "RECIPE...: it is not read with --board"),
        ("claim rlvr/pacs --seeds 0", "--seeds: of --bed, which is not given"),
        ("claim rlvr/pacs --whole", "--whole: of --prove, which is not given"),
        ("claim rlvr/pacs --bed beds/trie/twinz", "--bed: no recipe 'beds/trie/twinz'; did you mean 'beds/trie/twins'"),
        ("claim rlvr/pacs --on nothing", "beds are beds/ladder/domains,"),
        ("compare a b --runs x", "--runs: of --bed, which is not given"),
        ("compare --bed x -n 3", "--n: it is not read with --bed"),
        ("export r there --replay --dtype float16", "--dtype: it is not read with --replay"),
        ("tasks --split test", "--split: of NAME, which is not given"),
        ("runs --yes", "--yes: of --rm, which is not given"),
        ("serve r --port 99999", "'--port': 99999: expected at most 65535"),
        ("train r --seed x", "'--seed': x: expected a valid integer"),
    ],
)
def test_what_would_be_ignored_is_refused(shuhari, line: str, said: str) -> None:
    done = shuhari(*line.split())
    assert done.code == 2 and done.err.startswith("error: ") and said in done.err, done.err


@pytest.mark.parametrize("command", ["train", "show", "export", "eval", "compare"])
def test_a_missing_argument_is_told_with_where_to_look(shuhari, command: str) -> None:
    done = shuhari(command)
    assert done.code == 2 and "Missing argument" in done.err and f"(shuhari {command} --help shows" in done.err


def test_modes_that_read_each_other_go_together() -> None:
    app = typer.Typer()

    @app.command()
    def run(ctx: typer.Context, a: bool = False, b: bool = False, c: str = "", d: str = "", e: bool = False) -> None:
        check_together(ctx, {"": "--d", "--a": "--b --c", "--b": "--d", "--c x": ""})

    def ask(line: str) -> str:
        try:
            app(line.split(), standalone_mode=False)
        except typer.BadParameter as error:
            return str(error.message)
        return ""

    assert not any(map(ask, ("", "--e", "--d y --e", "--a --b", "--a --c y", "--a --c x", "--b --d y")))
    assert ask("--a --d y") == "it is not read with --a: leave one of them out"
    assert ask("--b --c x") == "--b and --c x exclude each other: give one of them"
    assert ask("--c x --d y") == "it is not read with --c x: leave one of them out"
    assert ask("--c y") == "of --a, which is not given"


def test_what_a_short_name_means_is_told_first(shuhari) -> None:
    done = shuhari("train", "SAC", "--dry-run")
    assert done.code == 0 and done.err.splitlines()[0] == "SAC: baselines/sac_pendulum", done.err
    mine = ("--set", "models.policy.path=a_model", "--set", "task.name=file/x.jsonl")
    done = shuhari("train", "rloo", *mine, "--dry-run")
    assert done.err.splitlines()[0] == "rloo: pretrained/grpo --with rlvr/rloo"
    done = shuhari("train", "ppo", "--env", "gym/CartPole-v1", "--dry-run")
    assert done.err.splitlines()[0] == "ppo: baselines/ppo_cartpole" and "gym/CartPole-v1" in done.out
    done = shuhari("train", "grpo", "--dry-run")
    assert done.code == 2 and all(name in done.err for name in ("`pretrained/grpo`", "`baselines/grpo`"))
    assert "baselines/a2c_cartpole" in shuhari("explain", "a2c").out
