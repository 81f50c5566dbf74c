"""Rewards and tools of one's own, which the recipes beside this file name."""


def length(completions: list[str]) -> list[float]:
    """The number of characters."""
    return [float(len(text)) for text in completions]


def odd(completions: list[str]) -> list[float]:
    """Right half of the time, whoever says it."""
    return [float(sum(map(ord, text)) % 2) for text in completions]


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def shorter(prompts: list[str], completions: list[list[str]]) -> list[int]:
    """The place of the better of two answers: the shorter one is, else the first."""
    return [int(len(second) < len(first)) for first, second in completions]
