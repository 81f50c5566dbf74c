"""A judge as a reward: grades of single answers, or wins of answers over others, by a model, a function or a server.

Left out: judges that are trained on verdicts (train a role of rewards, see `reward_model`), and grades of single steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import torch

from shuhari.bounds import AtLeast0, Count, Length, Seconds, Size, check
from shuhari.data import Problem, Request, Sampling, Trajectory, nearest
from shuhari.engines.client import Client
from shuhari.kernel.registry import register
from shuhari.ports import Ctx
from shuhari.rewards import verdicts
from shuhari.rewards.judge_asking import Asking, Folder, InRun, Kept, Reading, Verdict
from shuhari.rewards.judge_sources import ByFunction, ByRole, ByServer, Case, Source
from shuhari.rewards.verdicts import VerdictError
from shuhari.tasks.source import answer_text

SINGLE = ("nothing",)
PAIRS = ("group", "reference")
MARKERS = {True: ("question", "first", "second", "rubric", "reference", "low", "high"),
           False: ("question", "answer", "rubric", "reference", "low", "high")}  # fmt: skip
MUST = {True: ("first", "second"), False: ("answer",)}
WORDS = {True: ("A", "B"), False: ("yes", "no")}


@dataclass(frozen=True)
class Duel:
    """One thing to be judged: answer `i` alone (`other` None), or against another text, that of answer `j` if it is one
    of the group."""

    i: int
    mine: str
    other: str | None = None
    j: int | None = None


@register("reward", "judge")
@dataclass
class Judge:
    """Grades in [0, 1] by a judge: a role of the run, a function, or a server of the OpenAI chat API.

    With `against = "nothing"` the judge grades each answer from `low` to `high`, scaled to [0, 1]. Otherwise it
    compares two answers, and the grade is the share of comparisons that an answer wins (a tie counts half), as in
    Zheng et al. 2023, arXiv 2306.05685: against the other samples of the group, the reference of the problem, or
    answers of a role. `orders = "both"` asks about each pair in both orders, which cancels a preference for the
    first place; a verdict that follows the place counts as half a win for both. Equal texts tie, without asking.

    A verdict is what stands in double brackets, such as [[7]] or [[A]], or the whole text if nothing does. Anything
    else, several different verdicts and a grade out of range are no verdict. A vote without a verdict in every order
    does not count; an answer without a vote is ungraded, counted as `failed_graders` and shown. So are answers whose
    server does not answer within `timeout`, refuses, or sends more than `largest` bytes. Ungraded and not counted: a
    sample without a decision, a group with no second sample, a problem without a reference. A function that raises
    leaves its group ungraded.

    Verdicts of a function or a server are kept by their content in the run's checkpoints, or in the folder `cache`, and
    nothing is asked twice. Counted: `judge_asked`, `judge_cached`, `judge_unread` (no verdict), `judge_failed` (no
    answer), `judge_agreed` and `judge_disagreed` (votes in both orders), `judge_prompt_tokens` and `judge_tokens`
    (as a server reports them). Raises ValueError for settings that do not fit each other, ContractError, which ends the
    run, if a key is not set or a function returns no list.
    """

    role: str = ""
    """Role of the run that judges; set exactly one of `role`, `function` and `url`."""
    function: str = ""
    """Function that judges, `file.py:name` or a dotted path: `f(prompts, completions)`, with `references`, `rubrics`
    and `texts` (the whole question) if it names them. It returns, for each, a number in [`low`, `high`] or of a pair 0
    for the first and 1 for the second answer, or a text that is read as a verdict, or None."""
    url: str = ""
    """Address of a server of the OpenAI chat API, such as `http://127.0.0.1:8000/v1`."""
    model: str = ""
    """Name of the model at the server."""
    key_env: str = ""
    """Environment variable that holds the server's key; empty sends none. The key itself stands nowhere else."""
    against: str = "nothing"
    """What an answer is compared with: `nothing` grades it alone, `group` compares it with the other samples,
    `reference` with the problem's demonstration or answer, and the name of a role with that role's answers."""
    opponents: Length = 1
    """Number of answers that the role of `against` gives to each prompt."""
    orders: Literal["both", "drawn"] = "both"
    """Order of two answers: `both` asks twice, `drawn` once, in an order that is drawn."""
    votes: Length = 1
    """Number of times that each question is asked; the mean counts."""
    read: Literal["text", "logprob"] = "text"
    """What is read of a role: the `text` that it writes, or with `logprob` the probabilities of two words."""
    words: tuple[str, ...] = ()
    """The two words of a verdict: for the first and the second answer, or for good and bad with `logprob` and
    `against = "nothing"`; empty takes `A` and `B`, or `yes` and `no`."""
    rubric: str = ""
    """Criteria that the judge reads; empty takes a question about correctness and clarity."""
    rubric_column: str = ""
    """Column of the data that holds each problem's criteria; a problem without it is ungraded, counted and shown."""
    prompt: str = ""
    """Text that the judge reads, with `{question}`, `{answer}` (of a pair `{first}` and `{second}`), `{rubric}`,
    `{reference}`, `{low}` and `{high}`; empty takes a built-in one."""
    system: str = ""
    """System message before it; empty sends none."""
    low: float = 1.0
    """Lowest grade, which becomes 0."""
    high: float = 10.0
    """Highest grade, which becomes 1."""
    temperature: AtLeast0 = 0.0
    """Temperature of a role or a server that judges; 0 takes the most probable text."""
    max_new: Size = 512
    """Largest number of tokens that a role or a server writes; a verdict behind it is lost."""
    longest: Length = 8192
    """Largest number of characters of an answer or a reference that the judge reads."""
    fence: bool = True
    """Put answers between marks that they cannot contain; false puts them in as they are, for a judge without any
    general language."""
    timeout: Seconds = 120.0
    """Seconds that one request to a server, or one call of a function, may take."""
    retries: Count = 4
    """Number of times that a request is sent again, at growing distances, if the server is busy or gone."""
    connections: Length = 16
    """Number of requests to a server at once."""
    largest: Length = 1_000_000
    """Largest number of bytes of a server's answer."""
    cache: str = ""
    """Folder in which verdicts are kept for other runs too; empty keeps them in the run's checkpoints alone."""
    name: str = "judge"
    """Name of the grade, so that its column is `reward/<name>`."""
    state: Any = field(init=False, default=None)

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"reward/{self.name}",)

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(r for r in (self.role, "" if self.against in (*SINGLE, *PAIRS) else self.against) if r)

    def __post_init__(self) -> None:
        check(self)
        self._pairs = self.against not in SINGLE
        self._words = self._check_words()
        self._prompt = self.prompt or (verdicts.COMPARE if self._pairs else verdicts.GRADE)
        verdicts.check_template(self._prompt, MARKERS[self._pairs], MUST[self._pairs], "judge: prompt")
        self._source = self._find_source()
        self._folder = Folder(self.cache) if self.cache and self._source.name else None
        if self._source.name and self._folder is None:
            self.state = {"known": {}}
        reading = Reading(self.low, self.high, self._words, self._pairs, self.max_new)
        self._asking = Asking(self._source, reading)

    def _check_words(self) -> tuple[str, str]:
        """Return the two words. Raises ValueError for settings that do not fit each other."""
        sources = [n for n in ("role", "function", "url") if getattr(self, n)]
        if len(sources) != 1:
            found = " and ".join(sources) or "none of them"
            raise ValueError(f"judge: {found} set: expected exactly one of role, function and url")
        (source,) = sources
        own = {"read": "role", "model": "url", "key_env": "url"}
        plain = {"read": "text", "model": "", "key_env": ""}
        for setting, needs in own.items():
            if getattr(self, setting) != plain[setting] and source != needs:
                raise ValueError(f"judge: {setting} is {getattr(self, setting)!r} and {source} judges: expected {needs}"
                                 if setting != "key_env" else "judge: key_env is set without url")  # fmt: skip
        if source == "url" and not self.model:
            raise ValueError("judge: model is missing: expected the name of the model at the server")
        if source == "role" and self.cache:
            raise ValueError(f"judge: cache is {self.cache!r} and a role judges, whose weights may change: expected ''")
        if self.rubric and self.rubric_column:
            raise ValueError("judge: rubric and rubric_column are set: expected one of them")
        if not -1e9 <= self.low < self.high <= 1e9:
            raise ValueError(f"judge: low is {self.low:g} and high is {self.high:g}: expected low below high")
        if self.votes > 1 and source != "function" and (self.temperature == 0 or self.read == "logprob"):
            raise ValueError(f"judge: votes is {self.votes} and all would be equal: expected 1, or a temperature above "
                             "0 and read = \"text\"")  # fmt: skip
        words = self.words or WORDS[self._pairs]
        if len(words) != 2 or not all(words) or words[0].upper() == words[1].upper():
            raise ValueError(f"judge: words is {list(words)}: expected two different words")
        return words[0], words[1]

    def _find_source(self) -> Source:
        if self.function:
            return ByFunction(self.function, self.timeout, self.name)
        if self.url:
            client = Client(self.url, self.key_env, self.connections, self.timeout, self.retries, self.largest,
                            f"reward.{self.name}.url", f"reward.{self.name}.key_env")  # fmt: skip
            return ByServer(client, self.model, self.system, self.temperature, self.max_new)
        greedy = self.temperature == 0
        sampling = Sampling(temperature=1.0 if greedy else self.temperature, greedy=greedy, max_new=self.max_new)
        return ByRole(self.role, self.system, sampling, self._words if self.read == "logprob" else ())

    async def grade(self, group: Sequence[Trajectory], ctx: Ctx) -> list[Mapping[str, float] | None]:
        """Returns one grade per leaf."""
        leaves = [
            (t, [t.steps[i] for i in path])
            for t in group
            for path in t.paths()
        ]
        texts = [
            self._clean(answer_text(steps)) if any(s.action is not None for s in steps) else None
            for _, steps in leaves
        ]
        if all(text is None for text in texts):
            return [None] * len(texts)
        request = leaves[0][0].request
        duels, wins = await self._pair(request, texts, ctx), torch.zeros(len(texts), 2, dtype=torch.float64)
        failed: dict[int, Exception] = {}  # leaf -> its first error
        for duel, found in zip(duels, await self._hold(duels, request, ctx), strict=True):
            for i, mine in ((duel.i, True), *(((duel.j, False),) if duel.j is not None else ())):
                if isinstance(found, Exception):
                    failed.setdefault(i, found)
                else:
                    wins[i] += torch.tensor([found if mine else 1 - found, 1.0])
        for i, error in failed.items():
            if not wins[i, 1]:
                ctx.record_failure("failed_graders", error, f"reward {self.name!r}")
        return [{self.name: w / n} if n else None for w, n in wins.tolist()]

    def close(self) -> None:
        """Ends the open requests."""
        self._source.close()
        if self._folder is not None:
            self._folder.close()

    def _find_kept(self) -> Kept | None:
        """Returns where verdicts are kept; None for those of a role."""
        return InRun(self.state["known"]) if self.state else self._folder

    # ---------------------------------------------------------------- what is compared

    async def _pair(self, request: Request, texts: Sequence[str | None], ctx: Ctx) -> list[Duel]:
        """Returns what is to be judged of a group."""
        played = [(i, text) for i, text in enumerate(texts) if text is not None]
        if not self._pairs:
            return [Duel(i, text) for i, text in played]
        if self.against == "group":
            return [
                Duel(i, text, other, j)
                for place, (i, text) in enumerate(played)
                for j, other in played[place + 1 :]
            ]
        if self.against == "reference":
            reference = verdicts.find_reference(request.problem)
            return [] if reference is None else [Duel(i, text, self._clean(reference)) for i, text in played]
        start, key = ctx.encode(request.problem.prompt, self.against), (request.key, self.against, "judge", self.name)
        traces = await ctx.engine.sample(self.against, start, request.sampling, self.opponents, key=key)
        others = [self._clean(ctx.text(trace.action, self.against)) for trace in traces]
        return [
            Duel(i, text, other)
            for i, text in played
            for other in others
        ]

    def _clean(self, text: str) -> str:
        """Returns a text as the judge may read it: whole characters, at most `longest` of them."""
        return verdicts.cut(text.encode("utf-8", "replace").decode(), self.longest)

    async def _hold(self, duels: Sequence[Duel], request: Request, ctx: Ctx) -> list[float | Exception]:
        """Returns of each the grade, or the share of its first answer, in [0, 1]: the mean of its votes."""
        reference = verdicts.find_reference(request.problem)
        if verdicts.has_marker(self._prompt, "reference") and reference is None:
            return [VerdictError(f"problem {request.problem.id!r} has no reference: the prompt has {{reference}}")
                    for _ in duels]  # fmt: skip
        rubric = self._find_rubric(request.problem)
        if isinstance(rubric, Exception):
            return [rubric for _ in duels]
        swapped = torch.rand(len(duels), generator=ctx.rng("judge", self.name)) < 0.5
        cases, places = [], []
        for d, duel in enumerate(duels):
            if duel.mine == duel.other:
                continue
            orders = (False,) if duel.other is None else (False, True) if self.orders == "both" else (bool(swapped[d]),)
            for vote in range(self.votes):
                for swap in orders:
                    key = (request.key, "judge", self.name, d, swap)
                    answers = tuple(x for x in (duel.mine, duel.other) if x is not None)[:: -1 if swap else 1]
                    cases.append(self._write(request.problem, answers, reference, rubric, key, vote))
                    places.append((d, vote, swap))
        decided = await self._asking.decide(cases, self._find_kept(), ctx)
        found: dict[tuple[int, int], list[Verdict | Exception]] = {}
        for (d, vote, swap), verdict in zip(places, decided, strict=True):
            share = verdict if isinstance(verdict, Exception) or not swap else 1 - verdict
            found.setdefault((d, vote), []).append(share)
        return [
            0.5 if duel.mine == duel.other else self._count([found[d, v] for v in range(self.votes)], ctx)
            for d, duel in enumerate(duels)
        ]

    def _count(self, votes: Sequence[Sequence[Verdict | Exception]], ctx: Ctx) -> float | Exception:
        """Returns the mean of the votes with a verdict in every order, or the first error."""
        given = [_list_shares(vote) for vote in votes]
        whole = [shares for shares, vote in zip(given, votes, strict=True) if len(shares) == len(vote)]
        for first, *second in whole:
            if second:
                agreed = (first > 0.5) == (second[0] > 0.5) and (first < 0.5) == (second[0] < 0.5)
                ctx.charge("judge_agreed" if agreed else "judge_disagreed", 1)
        if not whole:
            return next(x for x in chain.from_iterable(votes) if isinstance(x, Exception))
        return sum(sum(shares) / len(shares) for shares in whole) / len(whole)

    def _find_rubric(self, problem: Problem) -> str | Exception:
        if not self.rubric_column:
            return self.rubric or verdicts.RUBRIC
        if (found := problem.info.get(self.rubric_column)) is None:
            near = nearest(self.rubric_column, problem.info)
            return VerdictError(f"rubric_column: problem {problem.id!r} has no column {self.rubric_column!r}; {near}")
        return str(found)

    def _write(
        self, problem: Problem, answers: tuple[str, ...], reference: str | None, rubric: str,
        key: tuple[object, ...], vote: int,
    ) -> Case:  # fmt: skip
        """Returns the question about one answer, or about two in this order."""
        labels = [f"answer {n}" for n in ("A", "B")] if self._pairs else ["answer"]
        shown = [verdicts.fence(a, label) if self.fence else a for a, label in zip(answers, labels, strict=True)]
        question = verdicts.write_question(problem.prompt).encode("utf-8", "replace").decode()
        texts = {"question": question, "rubric": rubric, "reference": self._clean(reference or ""),
                 "low": f"{self.low:g}", "high": f"{self.high:g}"}  # fmt: skip
        text = verdicts.fill(self._prompt, texts | dict(zip(MUST[self._pairs], shown, strict=True)))
        return Case(text, problem.prompt, answers, reference, rubric, key, vote)


def _list_shares(vote: Sequence[Verdict | Exception]) -> list[float]:
    return [x for x in vote if not isinstance(x, Exception)]
