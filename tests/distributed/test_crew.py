"""What a run does with workers, tested with workers in this process: they get what they need to play the very groups
that the run would play itself, and of those that die nothing is lost and nothing comes twice. The oracle is the run
without workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from yards import LocalYard

from shuhari.config.distributed import Distributed
from shuhari.config.recipe import Recipe, RecipeError, load
from shuhari.distributed import crew as crews
from shuhari.distributed import player as players
from shuhari.distributed.crew import explain_local
from shuhari.distributed.messages import LostWorkerError, pack, unpack
from shuhari.distributed.player import Player
from shuhari.distributed.work import Work
from shuhari.loop import hiring
from shuhari.loop.breaches import sum_weights
from shuhari.loop.flight import PATIENCE
from shuhari.loop.run import loop, open_run
from small_runs import write_sums

EVALUATED = "\n[evaluate]\nn = 4\nevery = 2\n"
LORA = "\n[models.policy.lora]\nrank = 2\n"


VARIED = """
def grade(prompts, completions, **columns):
    return [float(sum(map(ord, text)) % 7) for text in completions]
"""


def make(folder: Path, more: str = "", *sets: str) -> Recipe:
    """Three steps whose samples earn different rewards, so that the weights move."""
    file = folder / "sums.toml"
    (folder / "varied.py").write_text(VARIED)
    file.write_text(write_sums(3, 4) + EVALUATED + more)
    return load(file, ["threads=1", f"reward.own.use={folder / 'varied.py'}:grade", *sets])


def hire_two(run: Any, yard: LocalYard) -> None:
    stages = [replace(stage, distributed=Distributed(workers=2)) for stage in run.progress.stages]
    hiring.hire(run.recipe, stages, run.ctx, yard)


def play(recipe: Recipe, yard: Callable[[Any], LocalYard] | None = None) -> tuple[list[dict[str, Any]], Any, Any]:
    """The reports of a run but for its times, and the sum of the bits of its weights; its ledger, and its yard."""
    run = open_run(recipe)
    made = None
    if yard is not None:
        made = yard(run.ctx.loop)
        hire_two(run, made)
    reports = [
        {**{k: v for k, v in r.items() if k != "seconds"}, "bits": sum_weights(run.ctx.models)} for r in loop(run)
    ]
    assert len({r["bits"]["policy"] for r in reports}) == 3  # they move
    return reports, dict(run.ctx.ledger), made


def check_same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """The same reports, but for what was lost. Numbers may differ in their last bits, as other rows share a forward:
    on some processors they do."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        names = {k for k in one if "lost_groups" not in k}
        assert names == {k for k in other if "lost_groups" not in k}
        for name in names - {"bits"}:
            near = isinstance(one[name], float) and isinstance(other[name], float)
            assert one[name] == (pytest.approx(other[name], abs=1e-5, nan_ok=True) if near else other[name]), name


def struck(at: set[int]) -> Callable[[str, int], bool]:
    """Strikes the worker that gets the n-th group of all, for every n of a set."""
    seen = [0]

    def strike(method: str, _: int) -> bool:
        seen[0] += method == "play"
        return method == "play" and seen[0] in at

    return strike


def test_workers_give_the_groups_that_the_run_would_play(tmp_path: Path) -> None:
    recipe = make(tmp_path)
    alone, spent, _ = play(recipe)
    spread, also, yard = play(recipe, LocalYard)
    check_same(spread, alone)
    assert also == spent
    assert len(yard.kept) == 2 and all(hand.calls > 5 for hand in yard.kept)


def test_what_dead_workers_had_is_asked_again_and_counted_once(tmp_path: Path) -> None:
    recipe = make(tmp_path)
    alone, spent, _ = play(recipe)
    spread, also, yard = play(recipe, lambda at: LocalYard(at, struck({2, 7, 11})))
    lost = also.pop("lost_groups") + also.pop("evaluate/lost_groups", 0)
    assert lost >= 3 and len(yard.kept) == 2 + 3
    assert also == spent
    check_same(spread, alone)


def test_workers_that_do_nothing_but_die_end_the_run_with_their_last_words(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"workers have died.*\n?.*its last words|8 workers have died"):
        play(make(tmp_path), lambda at: LocalYard(at, lambda method, _: method == "play"))


def test_a_world_that_ends_is_begun_again_with_the_same_weights(tmp_path: Path) -> None:
    recipe = make(tmp_path)
    alone, _, _ = play(recipe)

    def make_yard(at: Any) -> LocalYard:
        yard = LocalYard(at)
        first = struck({9})

        def strike(method: str, n: int) -> bool:
            if first(method, n):
                yard.gone = "the world has ended"
                for hand in yard.kept:
                    hand.dead = True
            return False

        yard.strike = strike
        return yard

    spread, also, yard = play(recipe, make_yard)
    assert yard.restarts == 1 and also["lost_groups"] >= 1
    check_same(spread, alone)


def test_of_an_adapter_only_the_adapter_is_sent_again(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    _, _, yard = play(make(tmp_path, LORA), LocalYard)
    first, *later = yard.kept[0].weights
    trained = {name for name in first["policy"] if "lora_" in name}
    assert trained and trained < set(first["policy"])
    assert len(later) == 3 and all(set(tree["policy"]) == trained for tree in later)
    assert any((later[0]["policy"][n] != later[1]["policy"][n]).any() for n in trained)


def test_what_has_a_memory_is_played_by_the_run() -> None:
    class Remembers:
        def __init__(self) -> None:
            self.state = {"seen": 0}

    class Forgets:
        pass

    assert "'state'" in explain_local(Remembers(), Forgets(), {})
    assert "'state'" in explain_local(Forgets(), Forgets(), {"own": Remembers()})
    assert explain_local(Forgets(), Forgets(), {"own": Forgets()}) == ""


ASKS = '''
from dataclasses import dataclass
from shuhari.rollouts.single import Single

@dataclass
class Asks:
    inner: Single = None
    accepts = {}

    async def group(self, request, ctx):
        async def nothing():
            return 1.0
        await ctx.background(f"job {request.key}", nothing())
        return await Single().group(request, ctx)
'''


def test_a_group_that_asks_for_the_run_is_played_by_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    recipe = make(tmp_path, "", f"rollout.use={tmp_path / 'asks.py'}:Asks")
    alone, spent, _ = play(recipe)
    spread, also, _ = play(recipe, LocalYard)
    check_same(spread, alone)
    assert also == spent
    assert "ctx.background, which only the run itself has" in caplog.text


RAISES = '''
def grade(prompts, completions, **columns):
    raise ZeroDivisionError("of mine")
'''


def test_a_grader_that_raises_there_is_counted_and_told_here(tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(RAISES)
    recipe = make(tmp_path, f'\n[reward.bad]\nuse = "{tmp_path / "raises.py"}:grade"\n[reward.weights]\nown = 1\n')
    alone, spent, _ = play(recipe)
    spread, also, _ = play(recipe, LocalYard)
    assert also["failed_graders"] == spent["failed_graders"] == 12
    assert any("ZeroDivisionError: of mine" in text for text in spread[0]["problems"])
    check_same(spread, alone)


def test_a_mistake_that_ends_a_run_ends_it_from_there_too(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("def grade(prompts, completions, **columns):\n    return 'many'\n")
    more = f'\n[reward.bad]\nuse = "{tmp_path / "wrong.py"}:grade"\n'
    with pytest.raises(Exception, match="a number or None for each sample") as found:
        play(make(tmp_path, more), LocalYard)
    assert type(found.value).__name__ == "ContractError"
    assert any("raised in worker" in note for note in found.value.__notes__)


def test_what_no_other_process_can_import_is_refused(tmp_path: Path) -> None:
    from shuhari.kernel import registry

    registry.hold("given/mine", lambda prompts, completions: [0.0] * len(prompts))
    try:
        recipe = make(tmp_path, '\n[reward.bad]\nuse = "given/mine"\n')
        with pytest.raises(RecipeError, match=r"given/mine.*no worker can import.*file.py:name"):
            play(recipe, LocalYard)
    finally:
        registry.hold("given/mine", None)


def test_a_worker_that_cannot_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    describe = hiring.describe_run

    def elsewhere(*args: Any) -> dict[str, Any]:
        return {**describe(*args), "outside": {"data.jsonl": ("/nowhere/data.jsonl", "0")}}

    monkeypatch.setattr(hiring, "describe_run", elsewhere)
    with pytest.raises(RecipeError, match=r"a worker cannot be made.*/nowhere/data.jsonl.*is not on"):
        play(make(tmp_path), LocalYard)


def test_asynchronous_groups_stay_in_flight_at_workers_within_the_bound(tmp_path: Path) -> None:
    run = open_run(make(tmp_path, "\n[engine]\nstaleness = 1\n"))
    hire_two(run, LocalYard(run.ctx.loop))
    stale = []
    for _ in loop(run):
        for group in run.ctx.groups:
            for t in group:
                stale += [run.ctx.version - 1 - int(v) for s in t.steps for v in s.version[s.mask]]
    assert stale and min(stale) >= 0 and max(stale) <= 1
    assert run.ctx.ledger["steps"] == 3 and not run.ctx.in_flight.groups


def test_a_worker_has_less_time_to_say_what_it_spent_than_the_run_waits_for_it() -> None:
    assert crews.GIVE_UP < PATIENCE


class Hand:
    """Keeps what is sent; `answer` settles a call."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any], Future[bytes]]] = []

    def send(self, method: str, message: bytes, blobs: Any = ()) -> Future[bytes]:
        self.sent.append((method, unpack(message), Future()))
        return self.sent[-1][2]

    def list(self, method: str) -> list[dict[str, Any]]:
        return [message for name, message, _ in self.sent if name == method]

    def answer(self, method: str, answer: Any) -> None:
        for name, _, future in self.sent:
            if name == method and not future.done():
                future.set_exception(answer) if isinstance(answer, Exception) else future.set_result(pack(answer))

    def tell(self) -> str:
        return ""

    def close(self) -> None: ...


class Yard:
    def __init__(self) -> None:
        self.kept: list[Hand] = []

    def hire(self, _: int) -> Hand:
        self.kept.append(Hand())
        return self.kept[-1]

    def explain_loss(self) -> str:
        return ""


def make_crew(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Yard, Any]:
    """A crew of one, which has weights 0; its yard, and what a group sees of its run."""
    monkeypatch.setattr(crews, "PULSE", 0.01)
    yard, ledger = Yard(), dict[str, float]()
    made: Any = crews.Crew(yard, 1, [], {})  # type: ignore[arg-type]
    made.serial, made._reached = 0, {"serial": 0, "stage": 0, "version": 0}
    made._find = lambda rollout, ctx: "main"
    made.workers = [made._hire(0)]
    yard.kept[0].answer("begin", {})
    ctx = SimpleNamespace(within=(), apart=False, step=1, count=0.0, version=0, problems=[], ledger=ledger)
    ctx.charge = lambda what, amount: ledger.update({what: ledger.get(what, 0) + amount})
    return made, yard, ctx


def ask(number: int) -> dict[str, Any]:
    return {"number": number, "serial": 0}


async def pause() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("given_up", [{0}, {1}, {2}, {0, 2}, {0, 1, 2}])
def test_what_is_given_up_before_it_is_sent_is_not_sent_nor_counted(
    given_up: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        crew, yard, ctx = make_crew(monkeypatch)
        tasks = [asyncio.ensure_future(crew._ask(crew.workers[0], ask(i), ctx)) for i in range(3)]
        asyncio.get_running_loop().call_soon(lambda: [tasks[i].cancel() for i in given_up])  # after they have asked
        await pause()
        left = [i for i in range(3) if i not in given_up]
        sent = yard.kept[0].list("play")
        assert [message["number"] for message in sent] == left and not yard.kept[0].list("drop")
        assert [m["turn"][1:] for m in sent] == [(i, len(left)) for i in range(1, len(left) + 1)]
        later = asyncio.ensure_future(crew._ask(crew.workers[0], ask(3), ctx))
        await pause()
        last = yard.kept[0].list("play")[-1]
        assert last["number"] == 3 and last["turn"][1:] == (1, 1)
        assert last["turn"][0] not in {m["turn"][0] for m in sent}
        yard.kept[0].answer("play", {"spent": {}})
        await asyncio.wait([*tasks, later])
        assert {i for i in range(3) if tasks[i].cancelled()} == given_up

    asyncio.run(go())


def test_what_is_given_up_after_it_was_sent_is_dropped_there_and_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        crew, yard, ctx = make_crew(monkeypatch)
        task = asyncio.ensure_future(crew._ask(crew.workers[0], ask(7), ctx))
        await pause()
        task.cancel()
        await pause()
        assert yard.kept[0].list("drop") == [{"number": 7}]
        yard.kept[0].answer("play", {"dropped": True, "spent": {"tokens": 5}, "problems": []})
        await asyncio.wait([task])
        assert task.cancelled() and ctx.ledger == {"tokens": 5}

    asyncio.run(go())


def test_weights_that_are_lost_on_their_way_lose_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        crew, yard, ctx = make_crew(monkeypatch)
        task = asyncio.ensure_future(crew._ask(crew.workers[0], ask(0), ctx))
        await pause()
        yard.kept[0].answer("reach", LostWorkerError("object lost"))
        crew._reach(crew.workers[0], 0, [])  # later ones are on their way
        with pytest.raises(LostWorkerError, match="object lost"):
            await asyncio.wait_for(task, 5)

    asyncio.run(go())


def test_a_group_is_asked_again_with_the_weights_of_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        crew, yard, ctx = make_crew(monkeypatch)
        request: Any = SimpleNamespace(problem=SimpleNamespace(id="a"))
        monkeypatch.setattr(crews, "pack", lambda tree: pack({**tree, "request": None}))
        task = asyncio.ensure_future(crew.play(request, None, ctx))
        await pause()
        crew._reached = {"serial": 4, "stage": 1, "version": 9}
        yard.kept[0].answer("play", LostWorkerError("killed"))
        await asyncio.sleep(0.1)
        (first,), (again,) = (hand.list("play") for hand in yard.kept)
        assert [first[k] for k in ("serial", "stage", "version")] == [0, 0, 0]
        assert [again[k] for k in ("serial", "stage", "version")] == [4, 1, 9]
        assert first["number"] == again["number"]
        yard.kept[1].answer("play", {"group": [], "spent": {}, "problems": []})
        assert await task == [] and ctx.ledger == {"lost_groups": 1}

    asyncio.run(go())


def test_what_a_worker_spent_on_a_group_that_it_gives_back_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    crew, _, ctx = make_crew(monkeypatch)
    answer = {"refused": "it asks for ctx.probe", "spent": {"tokens": 5}, "problems": []}
    assert crew._take(answer, None, object(), crew.workers[0], ctx) is None
    assert ctx.ledger == {"tokens": 5}


def make_player() -> Any:
    """A player without components: what it knows of weights and of groups."""
    player: Any = Player.__new__(Player)
    player.serial = player.at = -1
    player.taken, player._reached = [], asyncio.Event()
    player._playing, player._dropped = {}, set()
    engine = SimpleNamespace(sync=lambda models, version: player.taken.append(version))
    player.ctx = SimpleNamespace(set_threads=lambda: None, models={}, engine=engine)
    player._install = lambda index: None
    player.played = []
    player._fork = lambda ask: player.played.append(ask["number"]) or SimpleNamespace(ledger={}, problems=[])
    return player


def test_a_new_worker_takes_its_whole_weights_first_whatever_comes_first() -> None:
    async def go() -> None:
        work = Work()
        work.player = player = make_player()
        work._begun.set()
        calls = [{"serial": 5, "after": -1}, {"serial": 6, "after": 5}, {"serial": 7, "after": 6}]
        messages = [pack({**call, "stage": 0, "version": call["serial"]}) for call in calls]
        await asyncio.wait_for(asyncio.gather(*(work.reach(m, []) for m in reversed(messages))), 5)
        assert player.taken == [5, 6, 7] and player.serial == 7
        await asyncio.wait_for(player.wait_for(7), 5)

    asyncio.run(go())


def test_a_group_that_is_dropped_before_it_begins_is_not_played(monkeypatch: pytest.MonkeyPatch) -> None:
    async def group(ctx: Any, ask: Any) -> dict[str, Any]:
        return {"group": []}

    async def go() -> None:
        work = Work()
        work.player = player = make_player()
        monkeypatch.setattr(players, "_play", group)
        work._begun.set()
        asks = [{"number": n, "serial": 0, "turn": (40, n, 2)} for n in (1, 2)]
        waiting = [asyncio.ensure_future(work.play(pack(ask))) for ask in asks]
        await pause()
        await work.drop(pack({"number": 1}))
        await work.reach(pack({"serial": 0, "after": -1, "stage": 0, "version": 0}), [])
        first, second = [unpack(a) for a in await asyncio.wait_for(asyncio.gather(*waiting), 5)]
        assert first == {"dropped": True, "spent": {}, "problems": []}
        assert second["group"] == [] and player.played == [2] and not player._dropped

    asyncio.run(go())
