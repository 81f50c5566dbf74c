"""Decoders of the models that an engine serves: made on first use, with the weights of the last sync.

Left out: which rows run in them, and for which calls (`local`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from shuhari.ports import ability


class Decoders:
    """The decoders by model; `settings` are the settings of each decoder."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._made: dict[int, tuple[Any, Any]] = {}  # model -> (model, its decoder or None)
        self._stale: set[int] = set()  # models whose decoders have not seen the weights of the last sync

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over (model, decoder) of the models that have one."""
        return ((model, decoder) for model, decoder in self._made.values() if decoder is not None)

    def sync(self, models: Iterable[Any], version: int, *, moving: bool) -> None:
        """Serve these models with new weights, and drop the decoders of others. moving: the weights may change before a
        decoder is used again, so all decoders take them now; otherwise only decoders with running rows do, and the
        others on their next use."""
        served = {id(model) for model in models}
        self._made = {i: pair for i, pair in self._made.items() if i in served}
        for model, decoder in self._made.values():
            if decoder is not None and (moving or len(decoder)):
                decoder.refresh(version)
            else:
                self._stale.add(id(model))

    def of(self, model: Any, source: Callable[[], Any], version: int) -> Any:
        """Return the decoder of a model with the weights of the last sync, whose version is `version`; None if it has
        none. source: returns the model, or its copy, whose weights are taken."""
        if id(model) not in self._made:
            decoder = None if ability(model, "decoder") is None else source().decoder(**self._settings)
            self._made[id(model)] = model, decoder
            self._stale.add(id(model))
        decoder = self._made[id(model)][1]
        if id(model) in self._stale:
            self._stale.discard(id(model))
            if decoder is not None:
                decoder.refresh(version)
        return decoder
