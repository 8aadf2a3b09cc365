"""Pairs of a query and a skill as token ids: documents tokenised once, pairs in batches of about equal length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranker.core.artifacts import cached_array, digest
from ranker.core.errors import ResourceError
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Int32
from ranker.core.views import view_texts

VIEWS = ("label", "label_description")


@dataclass(frozen=True)
class Template:
    """What stands before, between and after the two texts of a pair, as token ids.

    Attributes
    ----------
    before, between, after : tuple of int
    types : tuple of int
        Token type of before, query, between, document and after.
    max_length : int
        Tokens of a whole pair.
    ending : int
        Tokens at the end of a query that stay where it is cut.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    max_length: int
    types: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
    ending: int = 0

    @classmethod
    def of_tokenizer(cls, tokenizer: Any, max_length: int) -> Template:
        """Read the special tokens that a fast tokeniser puts around a pair off an example.

        Raises
        ------
        ResourceError
            If it is no fast tokeniser, or puts something else than its two texts and special tokens together.
        """
        texts = ("weld frames", "join metal")
        try:
            encoding = tokenizer(*texts).encodings[0]
        except (AttributeError, TypeError) as error:
            raise ResourceError(f"{type(tokenizer).__name__} is no fast tokeniser; save its tokenizer.json") from error
        first, second = (np.flatnonzero([part == side for part in encoding.sequence_ids]) for side in (0, 1))
        if not len(first) or not len(second):
            raise ResourceError(f"{type(tokenizer).__name__} drops plain English words; its vocabulary is not usable")
        ids, types = encoding.ids, encoding.type_ids
        cuts = (0, first[0], first[-1] + 1, second[0], second[-1] + 1, len(ids))
        parts = [tuple(ids[start:end]) for start, end in pairwise(cuts)]
        alone = [tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
        if [parts[1], parts[3]] != alone:
            raise ResourceError(f"{type(tokenizer).__name__} splits a text otherwise in a pair than alone")
        kinds = [types[start] if start < end else 0 for start, end in pairwise(cuts)]
        return cls(parts[0], parts[2], parts[4], max_length, (kinds[0], kinds[1], kinds[2], kinds[3], kinds[4]))

    @property
    def room(self) -> int:
        """Tokens left for the two texts."""
        return self.max_length - len(self.before) - len(self.between) - len(self.after)

    def lengths(self, query: int, document: int) -> tuple[int, int]:
        """Return to how many tokens the two texts are cut: the longer one first, then both to half of the room."""
        if query + document <= self.room:
            return query, document
        short = min(query, document)
        if 2 * short > self.room:
            half = self.room // 2
            return (half, self.room - half) if query <= document else (self.room - half, half)
        return (short, self.room - short) if query <= document else (self.room - short, short)

    def join(self, query: Sequence[int], document: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the ids and the token types of a pair, cut to `max_length`."""
        sizes = self.lengths(len(query), len(document))
        if sizes[0] < len(query):
            query = [*query[: sizes[0] - self.ending], *query[len(query) - self.ending :]]
        parts = (self.before, query, self.between, document[: sizes[1]], self.after)
        types = [kind for part, kind in zip(parts, self.types, strict=True) for _ in part]
        return [token for part in parts for token in part], types


class Documents:
    """The token ids of every skill, one flat array with the places where each begins."""

    def __init__(self, flat: Int32, n: int) -> None:
        self._starts, self._ids = flat[: n + 1], flat[n + 1 :]

    @classmethod
    def build(cls, taxonomy: Taxonomy, tokenizer: Any, *, view: str, max_length: int, prefix: str = "") -> Documents:
        """Tokenise a view of the taxonomy, or take the ids from the cache.

        Parameters
        ----------
        taxonomy : Taxonomy
        tokenizer : PreTrainedTokenizerFast
        view : {"label", "label_description"}
        max_length : int
            Tokens after which a text is cut.
        prefix : str
            Put before every text.
        """

        def compute() -> Int32:
            texts = [prefix + text for text in view_texts(taxonomy, view)]
            ids = tokenizer(texts, add_special_tokens=False, truncation=True, max_length=max_length)["input_ids"]
            starts = np.cumsum([0, *map(len, ids)])
            return np.concatenate([starts, *map(np.asarray, ids)]).astype(np.int32)

        key = {
            "tokenizer": digest(tokenizer.backend_tokenizer.to_str()),
            "taxonomy": taxonomy.fingerprint,
            "view": view,
            "max_length": max_length,
            "prefix": prefix,
        }
        flat: Any = cached_array("tokens", key, compute)  # integers, which the cache keeps as they are
        return cls(np.asarray(flat), len(taxonomy))

    def __getitem__(self, row: int) -> list[int]:
        ids: list[int] = self._ids[self._starts[row] : self._starts[row + 1]].tolist()
        return ids

    def sizes(self, rows: Int32) -> NDArray[np.intp]:
        """Return the number of tokens of each row."""
        return (self._starts[rows + 1] - self._starts[rows]).astype(np.intp)


def batches(sizes: NDArray[np.intp], rows: Int32, budget: int) -> Iterator[NDArray[np.intp]]:
    """Yield places of a query's pairs in batches of about equal length, padded to at most `budget` tokens.

    A batch holds pairs of one query only, sorted by (tokens, taxonomy row). So its composition, on which the last bits
    of a float depend, is the same whatever other queries the call has and in whatever order the pool is.
    """
    order = np.lexsort((rows, sizes))
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and int(sizes[order[end]]) * (end + 1 - start) <= budget:
            end += 1
        yield order[start:end]
        start = end
