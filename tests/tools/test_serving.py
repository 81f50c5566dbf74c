"""The server in this process: answers against transformers, what is refused, who may ask, and what leaves when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from served import CONTEXT, TEXTS, ask, read_events, until, write_model

from chat_models import CHATML, save_chat
from shuhari.desk.api import load
from shuhari.desk.serving.app import make_app
from shuhari.desk.serving.asking import Ask, read_ask, read_body
from shuhari.desk.serving.bodies import BODY
from shuhari.desk.serving.chatting import read_messages
from shuhari.desk.serving.guard import is_loopback
from shuhari.desk.serving.refusals import Refused
from shuhari.desk.serving.running import read_key
from shuhari.desk.serving.worker import Worker
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.models.text.static import generate

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
KEY = "a-key-of-thirty-two-characters-!"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="module")
def worker(folder: Path) -> Iterator[Worker]:
    torch.set_num_threads(1)
    made = Worker(load(folder).model, slots=16, queue=8, most=CONTEXT)
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def app(worker: Worker) -> Any:
    return make_app(worker, "tiny")


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    """(tokenizer, model) as transformers reads them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()


def body(prompt: Any = TEXTS[0], **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": 24, **more}


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": t} for t in texts], "max_tokens": 24, **more}


@torch.no_grad()
def find_log_probs(theirs: Any, ids: list[int]) -> torch.Tensor:
    """[K - 1, V] of each next token, the padding token left out, as our models never say it."""
    tokenizer, lm = theirs
    logits = lm(torch.tensor([ids])).logits[0, :-1].double()
    logits[:, tokenizer.pad_token_id] = -torch.inf
    return logits.log_softmax(-1)


def find_greedy(theirs: Any, text: str, n: int) -> list[int]:
    tokenizer, _ = theirs
    ids = tokenizer.encode(text, add_special_tokens=False)
    said: list[int] = []
    while len(said) < n and (not said or said[-1] != tokenizer.eos_token_id):
        said.append(int(find_log_probs(theirs, [*ids, *said, 0])[-1].argmax()))
    return said


# ---------------------------------------------------------------- answers


def test_greedy_answers_and_log_probabilities_are_those_of_transformers(app: Any, theirs: Any) -> None:
    replies = ask(app, *((TEXT, body(t, temperature=0, logprobs=3)) for t in TEXTS))
    for text, reply in zip(TEXTS, replies, strict=True):
        wanted, prompt = find_greedy(theirs, text, 24), theirs[0].encode(text)
        found = reply.json()
        (choice,), usage = found["choices"], found["usage"]
        assert choice["text"] == theirs[0].decode([i for i in wanted if i != theirs[0].eos_token_id])
        assert usage == {"prompt_tokens": len(prompt), "completion_tokens": len(wanted),
                         "total_tokens": len(prompt) + len(wanted)}  # fmt: skip
        table = find_log_probs(theirs, [*prompt, *wanted])[len(prompt) - 1 :]
        logp = table[torch.arange(len(wanted)), wanted]
        assert np.allclose(choice["logprobs"]["token_logprobs"], logp, atol=1e-4)
        for top, best in zip(choice["logprobs"]["top_logprobs"], table.topk(3).values.tolist(), strict=True):
            assert abs(max(top.values()) - best[0]) < 1e-4  # of tokens that read alike only the likeliest is shown
            assert all(min(abs(x - b) for b in best) < 1e-4 for x in top.values())
        assert choice["finish_reason"] == ("stop" if wanted[-1] == theirs[0].eos_token_id else "length")


def test_a_prompt_is_scored_as_transformers_does(app: Any, theirs: Any) -> None:
    """As harnesses ask for the likelihood of a text: `echo`, with a token more or none."""
    ids = theirs[0].encode(TEXTS[1])
    for prompt in (TEXTS[1], ids):
        one, none = ask(app, (TEXT, body(prompt, echo=True, max_tokens=1, logprobs=1, temperature=0)),
                        (TEXT, body(prompt, echo=True, max_tokens=0, logprobs=1)))  # fmt: skip
        table = find_log_probs(theirs, ids)
        wanted = table[torch.arange(len(ids) - 1), ids[1:]]
        for reply, more in ((one, 1), (none, 0)):
            (choice,) = reply.json()["choices"]
            found = choice["logprobs"]["token_logprobs"]
            assert found[0] is None and len(found) == len(ids) + more
            assert np.allclose(found[1 : len(ids)], wanted, atol=1e-4)
            tops = [max(x.values()) for x in choice["logprobs"]["top_logprobs"][1 : len(ids)]]
            assert np.allclose(tops, table.max(1).values, atol=1e-4)
            assert choice["text"].startswith(TEXTS[1])
        assert none.json()["choices"][0]["text"] == TEXTS[1] and none.json()["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_a_stream_says_what_a_whole_answer_says(app: Any, path: str) -> None:
    more: dict[str, Any] = {"seed": 5, "temperature": 1.3, "n": 3, "stop": ["e", "\u20ac", "th"]}
    more |= {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
    made = chat(TEXTS[1], **more) if path == CHAT else body(TEXTS[1], **more)
    whole, stream = ask(app, (path, made), (path, {**made, "stream": True, "stream_options": {"include_usage": True}}))
    *chunks, last = read_events(stream.text)
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert last["choices"] == [] and last["usage"] == whole.json()["usage"]
    assert all(c["usage"] is None and len(c["choices"]) == 1 for c in chunks) and len({c["id"] for c in chunks}) == 1
    for wanted in whole.json()["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == wanted["index"]]
        reasons = [c["finish_reason"] for c in mine]
        assert reasons == [None] * (len(mine) - 1) + [wanted["finish_reason"]]
        if path == TEXT:
            assert "".join(c["text"] for c in mine) == wanted["text"]
            parts = [c["logprobs"]["token_logprobs"] for c in mine if c["logprobs"]]
            assert np.allclose([x for p in parts for x in p], wanted["logprobs"]["token_logprobs"], atol=1e-4)
        else:
            assert mine[0]["delta"] == {"role": "assistant", "content": ""}
            assert "".join(c["delta"].get("content", "") for c in mine) == wanted["message"]["content"]
            parts = [x for c in mine if c["logprobs"] for x in c["logprobs"]["content"]]
            assert [x["bytes"] for x in parts] == [x["bytes"] for x in wanted["logprobs"]["content"]]
            assert bytes(b for x in parts for b in x["bytes"]).decode() == wanted["message"]["content"]


def test_a_seed_gives_the_same_whatever_else_runs(app: Any) -> None:
    one = (TEXT, body(seed=7, n=3))
    alone = [c["text"] for c in ask(app, one)[0].json()["choices"]]
    others = [(TEXT, body(TEXTS[i % 3], seed=i, temperature=0.5 + i / 9)) for i in range(9)]
    *_, among, batch = ask(app, *others, one, (TEXT, body([TEXTS[1], TEXTS[0]], seed=7, n=3)))
    assert [c["text"] for c in among.json()["choices"]] == alone
    assert [c["text"] for c in batch.json()["choices"]][3:] == alone
    assert len(set(alone)) == 3
    first, second = ask(app, (TEXT, body()), (TEXT, body()))
    assert first.json()["choices"][0]["text"] != second.json()["choices"][0]["text"]
    assert ask(app, (TEXT, body(seed=8, n=3)))[0].json()["choices"][0]["text"] != alone[0]


def test_a_seeded_draw_is_the_one_of_its_key(app: Any, worker: Worker, theirs: Any) -> None:
    """By another path: the model sampled by itself, with the noise that the key names."""
    from hashlib import blake2b

    context = worker.model.encode(TEXTS[0])
    (answer,) = ask(app, (TEXT, body(seed=7, temperature=0.9, top_p=0.8, top_k=20)))
    key = keys(0, "seed", 7, blake2b(context.tobytes(), digest_size=16).hexdigest(), 0, n=1)
    sampling = read_ask(body(temperature=0.9, top_p=0.8, top_k=20), chat=False).sampling
    net = worker.model.module
    (trace,) = generate(net, [context], sampling, CounterNoise(key), ends=worker.model.text.ends, pad=0)
    assert worker.model.decode(trace.action[:24]) == answer.json()["choices"][0]["text"]


def test_an_answer_ends_at_the_context_and_at_the_limit(app: Any, worker: Worker) -> None:
    room = CONTEXT - len(worker.model.encode(TEXTS[0]))
    free = {k: v for k, v in chat("a", temperature=0).items() if k != "max_tokens"}
    long, short, none = ask(app, (TEXT, body(max_tokens=10**6, temperature=0, stop=None)), (TEXT, body(max_tokens=3)),
                            (CHAT, free))  # fmt: skip
    for reply, most in ((long, room), (short, 3)):
        found = reply.json()
        used = found["usage"]["completion_tokens"]
        assert used == most if found["choices"][0]["finish_reason"] == "length" else used <= most
    assert none.status_code == 200 and none.json()["usage"]["total_tokens"] <= CONTEXT


def test_a_stop_that_the_model_cannot_say_is_no_error(tmp_path: Path) -> None:
    made = Worker(load(write_model(tmp_path / "letters", tokenizer="char", alphabet="ab ")).model)
    made.start()
    try:
        app = make_app(made, "tiny")
        whole, cut, odd = ask(app, (TEXT, body("ab", temperature=0, stop=["\n\n", "Q:"])),
                              (TEXT, body("ab", seed=1, stop=["a", "Q:"])), (TEXT, body("abc")))  # fmt: skip
        assert whole.status_code == 200 and "a" not in cut.json()["choices"][0]["text"]
        assert odd.status_code == 400 and "'c'" in odd.json()["error"]["message"]
    finally:
        made.close()


def test_a_layout_without_continuous_batching_is_served_too(tmp_path: Path) -> None:
    sizes = {"attention_types": [[["global"], 2]]}
    with pytest.warns(UserWarning, match="own forward"):
        made = Worker(load(write_model(tmp_path / "neo", architecture="gpt_neo", config=sizes)).model)
    made.start()
    try:
        asked = body(temperature=0)
        whole, stream = ask(make_app(made, "tiny"), (TEXT, asked), (TEXT, {**asked, "stream": True}))
        text = "".join(c["choices"][0]["text"] for c in read_events(stream.text))
        assert text == whole.json()["choices"][0]["text"] and text
    finally:
        made.close()


# ---------------------------------------------------------------- chat


def test_a_conversation_is_rendered_by_its_template(app: Any, tmp_path: Path, folder: Path) -> None:
    """Without one as plain lines; a template runs in a process of its own, here one that writes <user>text</user>."""
    from shutil import copytree

    plain, same = ask(app, (CHAT, chat("a b", temperature=0)), (TEXT, body("user: a b\nassistant:", temperature=0)))
    assert plain.json()["choices"][0]["message"]["content"] == same.json()["choices"][0]["text"]
    copytree(folder, tmp_path / "tiny")
    (tmp_path / "tiny" / "chat_template.jinja").write_text(
        "{% if messages|length > 1 %}{{ raise_exception('one at most') }}{% endif %}"
        "<{{ messages[0].role }}>{{ messages[0].content }}</{{ messages[0].role }}>"
    )
    made = Worker(load(tmp_path / "tiny").model)
    made.start()
    try:
        own = make_app(made, "tiny")
        found, refused = ask(own, (CHAT, chat("a b", temperature=0)), (CHAT, chat("a", "b")))
        (wanted,) = ask(own, (TEXT, body("<user>a b</user>", temperature=0)))
        assert found.json()["choices"][0]["message"]["content"] == wanted.json()["choices"][0]["text"]
        why = refused.json()["error"]["message"]
        assert refused.status_code == 400 and "one at most" in why and f"{TEXT} takes a prompt as it is" in why
    finally:
        made.close()


TOOL = {"type": "function", "function": {"name": "price", "parameters": {"type": "object"}}}
CALLED = {"id": "c", "type": "function", "function": {"name": "price", "arguments": '{"item": "pen"}'}}


def test_tools_are_told_called_and_answered_in_text() -> None:
    turns = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "a pen?"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALLED, CALLED], "refusal": None},
        {"role": "tool", "tool_call_id": "c", "content": "17"},
        {"role": "tool", "tool_call_id": "c", "content": "18"},
    ]
    first, *rest = read_messages({"messages": turns, "tools": [TOOL]})
    assert first["role"] == "system" and first["content"].startswith("Be short.\n\n# Tools")
    assert json.dumps(TOOL) in first["content"]
    call = '<tool_call>{"name": "price", "arguments": {"item": "pen"}}</tool_call>'
    assert rest == [
        {"role": "user", "content": "What is\na pen?"},
        {"role": "assistant", "content": f"{call}\n{call}"},
        {"role": "user", "content": "<tool_response>17</tool_response>\n<tool_response>18</tool_response>"},
    ]
    assert read_messages({"messages": turns[:1], "tools": [TOOL], "tool_choice": "none"}) == (
        {"role": "system", "content": "Be short."},
    )
    told = read_messages({"messages": [turns[1]], "tools": [TOOL]})
    assert [m["role"] for m in told] == ["system", "user"]


def test_tools_that_a_template_would_drop_are_refused_by_name(tmp_path: Path) -> None:
    """Those of a template without a place for a system message; where it has one they are told."""
    silent = CHATML.replace("{% for m in messages %}", "{% for m in messages if m['role'] != 'system' %}")
    said = chat("What is a pen?", max_tokens=1)
    for name, template, code in (("told", CHATML, 200), ("dropped", silent, 400)):
        made = Worker(load(save_chat(tmp_path / name, template=template)).model, slots=2, queue=2, most=8)
        made.start()
        try:
            with_tools, without = ask(make_app(made, "tiny"), (CHAT, {**said, "tools": [TOOL]}), (CHAT, said))
        finally:
            made.close()
        assert (with_tools.status_code, without.status_code) == (code, 200)
    assert with_tools.json()["error"]["param"] == "tools" and "leaves system messages out" in with_tools.text


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALLED]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}, "messages[0].tool_calls[0].function"),
        ({"messages": [{"role": "user", "content": "x", "colour": 1}]}, "colour"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({"tools": [{"type": "web"}]}, "tools[0]"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"max_completion_tokens": 7}, "max_tokens"),
        ({"echo": True}, "echo"),
    ],
)
def test_a_chat_that_cannot_be_is_refused_by_field(app: Any, change: dict[str, Any], field: str) -> None:
    (reply,) = ask(app, (CHAT, {**chat("a"), **change}))
    assert reply.status_code == 400 and reply.json()["error"]["param"] == field


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"temperature": -1}, "temperature", "is -1: expected a number from 0 to 2"),
        ({"temperature": "hot"}, "temperature", "'hot'"),
        ({"temperature": True}, "temperature", "True"),
        ({"temperature": 1e-9}, "temperature", "0 (the most probable token)"),
        ({"temperature": 10**400}, "temperature", "expected"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"top_k": -2}, "top_k", "-1"),
        ({"min_p": 1}, "min_p", "below 1"),
        ({"n": 0}, "n", "1 to 256"),
        ({"n": 200, "prompt": ["a", "b"]}, "n", "400 answers"),
        ({"max_tokens": 0}, "max_tokens", "is 0: expected a whole number from 1"),
        ({"max_tokens": 2.5}, "max_tokens", "2.5"),
        ({"logprobs": 21}, "logprobs", "0 to 20"),
        ({"seed": 0.5}, "seed", "0.5"),
        ({"seed": 1 << 64}, "seed", "expected"),
        ({"stop": [""]}, "stop", "1 to 128 characters"),
        ({"stop": ["x"] * 10_000}, "stop", "list of 10000: expected a string, or a list of at most 16"),
        ({"stop": ["x" * 10_000]}, "stop", "1 to 128 characters"),
        ({"stop": [7]}, "stop", "7"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream is false"),
        ({"stream": True, "stream_options": {"usage": True}}, "usage", "include_usage"),
        ({"stream": True, "echo": True}, "echo", "false"),
        ({"prompt": []}, "prompt", "list of 0"),
        ({"prompt": [-1]}, "prompt", "token ids"),
        ({"prompt": [1, "a"]}, "prompt", "token ids"),
        ({"prompt": [10**6]}, "prompt", "is 1000000: expected token ids from 0 to 299"),
        ({"prompt": ["a"] * 257}, "prompt", "up to 256"),
        ({"prompt": "a \ud800"}, "prompt", "half of a surrogate pair, U+D800"),
        ({"prompt": None}, "prompt", "expected a string"),
        ({"prompt": "word " * 200}, "prompt", f"expected at most {CONTEXT - 1}, as the model reads {CONTEXT}"),
        ({"temprature": 0.1}, "temprature", "did you mean 'temperature'"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "not done here: expected 0"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "not done here"),
        ({"best_of": 4}, "best_of", "expected 1"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not done here"),
        ({"model": None}, "model", "missing"),
        ({"model": 5}, "model", "5"),
    ],
)
def test_what_cannot_be_is_refused_by_field(app: Any, change: dict[str, Any], field: str, words: str) -> None:
    (reply,) = ask(app, (TEXT, {**body(), **change}))
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["param"] == field and words in error["message"], error
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("name", ["tiny2", "../../etc/passwd", "/etc/passwd", "tiny\x00", "T" * 5000])
def test_another_model_is_not_found(app: Any, name: str) -> None:
    """A name is compared with the one that is served, and nothing is opened by it."""
    (reply,) = ask(app, (TEXT, {**body(), "model": name}))
    assert reply.status_code == 404 and reply.json()["error"]["code"] == "model_not_found"
    assert len(reply.text) < 400


def test_harmless_fields_are_taken(app: Any) -> None:
    usual = {"user": "me", "store": False, "frequency_penalty": 0.0, "presence_penalty": 0, "logit_bias": {},
             "best_of": 2, "n": 2, "suffix": None, "seed": 3}  # fmt: skip
    plain, same = ask(app, (TEXT, body(n=2, seed=3)), (TEXT, body(**usual)))
    assert same.json()["choices"] == plain.json()["choices"]


def send(app: Any, content: bytes, **headers: str) -> httpx.Response:
    async def go() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.post(TEXT, content=content, headers={"content-type": "application/json", **headers})

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"model": "tiny", "prompt": "a", "temperature": NaN}', "NaN"),
        (b'{"model": "tiny", "prompt": "a", "temperature": 1e999}', "temperature is inf"),
        (b'{"model": "tiny", "model": "tiny"}', "twice"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "nested"),
        (b"[]", "expected an object"),
        (rb'{"\ud800": 1}', r"'\ud800'"),
        (b"", "not JSON"),
        (b'{"n": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_bodies_that_are_none_are_refused(app: Any, content: bytes, words: str) -> None:
    reply = send(app, content)
    assert reply.status_code == 400 and words in reply.json()["error"]["message"]


def test_a_huge_body_and_a_form_are_refused(app: Any) -> None:
    assert send(app, b" " * (BODY + 1)).status_code == 413
    assert send(app, b"{}", **{"content-type": "text/plain"}).status_code == 415


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=4),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=3), x, max_size=3), max_leaves=5,
)  # fmt: skip
FIELDS = st.sampled_from(["prompt", "messages", "stop", "n", "seed", "temperature", "tools", "logprobs", "stream",
                          "stream_options", "max_tokens", "top_p", "top_k", "logit_bias", "tool_choice"])  # fmt: skip


@given(st.dictionaries(FIELDS, JSON, max_size=4), st.booleans())
@settings(deadline=None, max_examples=60)
def test_any_object_is_an_ask_or_is_refused(given_fields: dict[str, Any], is_chat: bool) -> None:
    found: Ask | Refused
    try:
        found = read_ask(read_body(json.dumps(given_fields).encode(), chat=is_chat), chat=is_chat)
    except Refused as refused:
        found = refused
    assert isinstance(found, Ask) or (found.status == 400 and str(found))


# ---------------------------------------------------------------- who may ask


def test_only_names_of_loopback_are_answered_there(app: Any, worker: Worker) -> None:
    for base in ("http://localhost", "http://127.0.0.1:8000", "http://[::1]:9", "http://LOCALHOST:1"):
        assert ask(app, "/v1/models", base=base)[0].status_code == 200
    for base in ("http://evil.com", "http://127.0.0.1.evil.com", "http://localhost.evil.com:8000", "http://10.0.0.1"):
        (reply,) = ask(app, "/v1/models", base=base)
        assert reply.status_code == 403 and "Host" in reply.json()["error"]["message"]
    wide = make_app(worker, "tiny", local=False, key=KEY)
    assert ask(wide, "/v1/models", base="http://a.b", Authorization=f"Bearer {KEY}")[0].status_code == 200
    assert [is_loopback(x) for x in ("127.8.8.8", "::1", "0.0.0.0", "::", "")] == [True, True, False, False, False]


def test_pages_of_elsewhere_are_not_answered(app: Any) -> None:
    for origin in ("https://evil.com", "null", "http://localhost.evil.com", "http://[bad"):
        (reply,) = ask(app, (TEXT, body()), Origin=origin)
        assert reply.status_code == 403
    (reply,) = ask(app, (TEXT, body()), Origin="http://localhost:3000")
    assert reply.status_code == 200 and not [h for h in reply.headers if h.startswith("access-control")]


def test_a_key_is_asked_for_and_never_shown(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    app = make_app(worker, "tiny", local=False, key=KEY)
    for brought in ("", KEY, f"Basic {KEY}", f"Bearer {KEY[:-1]}", f"Bearer {KEY}x", "Bearer "):
        headers = {"Authorization": brought} if brought else {}
        for reply in ask(app, "/v1/models", "/metrics", (TEXT, body()), **headers):
            assert reply.status_code == 401 and reply.json()["error"]["code"] == "invalid_api_key"
            assert KEY not in reply.text
    assert [r.status_code for r in ask(app, "/v1/models", "/metrics", (TEXT, body()), Authorization=f"Bearer {KEY}")
            ] == [200] * 3  # fmt: skip
    assert ask(app, "/health")[0].status_code == 200
    assert KEY not in caplog.text and KEY not in repr(app)


def test_beyond_loopback_a_key_is_needed() -> None:
    for host, variable, env in (("0.0.0.0", "", {}), ("0.0.0.0", "K", {}), ("127.0.0.1", "K", {"K": "short"}),
                                ("::", "K", {"K": " "}), ("0.0.0.0", "K", {"K": "é" * 40})):  # fmt: skip
        with pytest.raises(ValueError, match=r"--key-env|at least 16") as told:
            read_key(variable, env, host)
        assert not env or env["K"].strip() == "" or env["K"] not in str(told.value)
    assert read_key("K", {"K": f"{KEY}\n"}, "0.0.0.0") == KEY and read_key("", {}, "127.0.0.1") == ""


def test_addresses_that_there_are_not(app: Any) -> None:
    replies = ask(app, "/", "/v1/completions", "/v1/models/../../etc/passwd", ("/v1/embeddings", {}), "/v1/models/tiny")
    assert [r.status_code for r in replies] == [404, 405, 404, 404, 200]
    assert all("message" in r.json()["error"] for r in replies[:-1])


# ---------------------------------------------------------------- load


async def post(app: Any, made: dict[str, Any], leave: asyncio.Event) -> list[Any]:
    """What an application sends for a completion whose client goes when `leave` is set."""
    sent: list[Any] = []
    waiting = [{"type": "http.request", "body": json.dumps(made).encode(), "more_body": False}]

    async def receive() -> Any:
        if waiting:
            return waiting.pop()
        await leave.wait()
        return {"type": "http.disconnect"}

    async def take(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": TEXT, "raw_path": TEXT.encode(), "query_string": b"",
             "headers": headers, "http_version": "1.1", "scheme": "http", "server": ("localhost", 80)}  # fmt: skip
    await app(scope, receive, take)
    return sent


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_leaves_the_decoder(worker: Worker, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    """A client that goes takes its rows with it, those that wait too; another's answer is what it would have been."""
    app = make_app(worker, "tiny")
    alone = ask(app, (TEXT, body(seed=1)))[0].json()["choices"][0]["text"]
    steps = slow(worker, monkeypatch)

    async def go() -> None:
        leave = asyncio.Event()
        gone = asyncio.ensure_future(post(app, body(n=20, max_tokens=100, stream=stream, stop=None), leave))
        await until(lambda: steps[0] > 3)
        assert worker.rows == 20 and worker.engine.busy
        other = asyncio.ensure_future(post(app, body(seed=1), asyncio.Event()))
        await until(lambda: worker.rows == 21)
        leave.set()
        await gone
        assert worker.rows == 1
        found = json.loads((await other)[-1]["body"])
        assert found["choices"][0]["text"] == alone
        await until(lambda: not worker.engine.busy)
        assert steps[0] < 80

    asyncio.run(go())
    assert worker.rows == 0


def slow(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps of the decoder take a while from now on; how many there were."""
    import time

    steps, step = [0], worker.engine._step

    def wait() -> None:
        time.sleep(0.01)
        steps[0] += 1
        step()

    monkeypatch.setattr(worker.engine, "_step", wait)
    return steps


def test_too_many_are_sent_away_and_may_come_again(app: Any, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    slow(worker, monkeypatch)
    first, second, stream = ask(app, (TEXT, body(n=20)), (TEXT, body(n=20)), (TEXT, body(n=20, stream=True)))
    codes = sorted(r.status_code for r in (first, second, stream))
    assert codes == [200, 503, 503]
    away = next(r for r in (first, second) if r.status_code == 503)
    assert away.headers["retry-after"] == "1" and away.json()["error"]["code"] == "overloaded"
    assert ask(app, (TEXT, body(n=20)))[0].status_code == 200


def test_an_engine_that_fails_is_an_error_of_the_server(
    app: Any, worker: Worker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a secret of the model")

    with monkeypatch.context() as patched:
        patched.setattr(worker.engine, "sample", fail)
        whole, stream = ask(app, (TEXT, body()), (TEXT, body(stream=True)))
    for reply in (whole, stream):
        assert reply.status_code == 500 and reply.json()["error"]["type"] == "server_error"
        assert "ZeroDivisionError" in reply.text and "secret" not in reply.text
    assert "ZeroDivisionError" in caplog.text
    assert ask(app, (TEXT, body()))[0].status_code == 200


def test_what_a_server_counts(worker: Worker) -> None:
    app = make_app(worker, "tiny")
    ask(app, (TEXT, body()), (TEXT, body(stream=True)), (TEXT, {**body(), "n": 0}))
    lines = ask(app, "/metrics")[0].text.splitlines()
    assert 'shuhari_requests_total{path="/v1/completions",status="200"} 2' in lines
    assert 'shuhari_requests_total{path="/v1/completions",status="400"} 1' in lines and "shuhari_rows 0" in lines
