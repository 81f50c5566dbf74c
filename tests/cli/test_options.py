"""Options that say nothing together are refused; so is a line that lacks something, with what helps."""

from __future__ import annotations

from pathlib import Path

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
        ("train r --model DIR", "no option --model; a setting is --set models.policy.path=..."),
        ("train r --learning-rate 1e-5", "--set part.policy.optimiser.lr=..."),
        ("train r --data rows.jsonl", "task.name=file/<path> in a recipe"),
        ("train r --output-dir x", "--run on the command line"),
        ("eval m --max-new 8", "--set rollout.sampling.max_new=..."),
        ("serve m --learning-rate 1", "No such option: --learning-rate"),
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


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("ppo_cartpole", "ppo_cartpole: baselines/ppo_cartpole"),  # and not reproduce/ppo_cartpole
        ("quickstart", "quickstart: baselines/quickstart"),
        ("PPO-Cartpole", "PPO-Cartpole: baselines/ppo_cartpole"),
        ("ppo_cartpol", "error: no recipe 'ppo_cartpol'; did you mean 'baselines/ppo_cartpole'?"),
        ("quickstrat", "error: no recipe 'quickstrat'; did you mean 'baselines/quickstart'?"),
        ("grop", "error: no recipe 'grop'; did you mean 'grpo'?"),
        ("rlvr/clip_cv", "error: no recipe 'rlvr/clip_cv'; did you mean 'rlvr/clip_cov'?"),
        ("reproduce/ppo_cartpol", "error: no recipe 'reproduce/ppo_cartpol'; did you mean 'reproduce/ppo_cartpole'?"),
        ("opd_", "error: no recipe 'opd_'; did you mean 'opd'?"),
        ("xyzzy", "error: no recipe 'xyzzy'; `shuhari methods` lists those that there are"),
    ],
)
def test_a_name_without_a_family_is_a_baseline(shuhari, name: str, told: str) -> None:
    assert shuhari("train", name, "--dry-run").err.splitlines()[0] == told


def test_an_arm_may_be_named_by_a_setting(home: Path) -> None:
    """At the first `=` behind which a run is named; a run's own name may have one as well."""
    from shuhari.desk.cli.comparing import read_arms

    (home / "runs/s1").rename(home / "runs/lr=2")
    arms = read_arms(["rate=0.1=s0", "lr=2"])
    assert "rate=0.1" in arms and list(arms.values()) == [[Path("runs/s0")], [Path("runs/lr=2")]]
    assert list(read_arms(["a=s0", "b=lr=2"])) == ["a", "b"]
    with pytest.raises(Exception, match="no run 'nothing'"):
        read_arms(["a=nothing", "b=s0"])
