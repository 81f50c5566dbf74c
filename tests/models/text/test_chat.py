"""Chat templates of someone else's: the text that transformers makes of them, or a refusal in a bounded time."""

from __future__ import annotations

import time

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from shuhari.data import FrozenDict
from shuhari.models.text.chat import render

SAID = (FrozenDict(role="system", content="be \ud800 brief"), FrozenDict(role="user", content="hi", n=(1, 2)))
TEMPLATE = (
    "{% for m in messages %}{{ bos }}<{{ m.role }}>{{ m | tojson }}{% if loop.last %}{% break %}{% endif %}"
    "{% endfor %}\n{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_it_is_the_text_that_transformers_makes() -> None:
    want, _ = render_jinja_template([list(SAID)], chat_template=TEMPLATE, add_generation_prompt=True, bos="^")
    assert render(TEMPLATE, SAID, {"bos": "^"}) == want[0]
    assert "<assistant>" in want[0]


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{ raise_exception('in turns, please') }}", "refuses messages of system, user: in turns, please"),
        ("{% for m in %}", "refuses messages of system, user: "),
        ("{{ messages[7].content.upper() }}", "refuses messages of system, user: .*no element 7"),
        ("{{ 'x' * 4000000000 }}", "wants more for messages of system, user than 1 s of processor time"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "wants more for messages"),
        ("x" * (1 << 21), "has 2097152 characters: expected at most 1048576"),
        ("{% set x = messages %}", "writes nothing for messages of system, user"),
        ("{{ lipsum.__globals__['os'].getpid() }}", "access to attribute '__globals__' .* is unsafe"),
        ("{{ 'a' | center(10**10) }}", "wants more for messages"),
        ("{% include '/etc/passwd' %}", "refuses messages"),
    ],
)
def test_what_is_refused(template: str, told: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match=told):
        render(template, SAID, {})
    assert time.process_time() - began < 1  # none of the work is done here
    assert render("{{ messages[1].content }}", SAID, {}) == "hi"
