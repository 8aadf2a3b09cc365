"""Sentence encoders: a model by path, package or hub id; one object per model, shared between lanes."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from lanes import bert
from lanes.threads import one_blas_thread
from ranker.core.artifacts import cached_array
from ranker.core.errors import RankerError, ResourceError
from ranker.core.models import resolve_model, revision
from ranker.core.types import Float32

# Where the memo of token states ends; 64 MiB hold some 1,500 sentences of MiniLM's width.
_MEMO_BYTES = 64 * 2**20
_BATCH_TOKENS = 2_048


class NumpyBackend:
    """BERT models with mean or first-token pooling, through `lanes.bert` and the fast tokeniser."""

    def __init__(self, folder: Path, *, mean: bool, normalises: bool, max_length: int) -> None:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        try:
            weights = load_file(folder / "model.safetensors")
        except (SafetensorError, OSError) as error:
            raise ResourceError(f"{folder / 'model.safetensors'} cannot be read ({error}); fetch it again") from error
        self.parameters = sum(int(w.size) for name, w in weights.items() if not name.endswith("position_ids"))
        one_blas_thread()
        self.model = bert.Bert(json.loads((folder / "config.json").read_text()), weights)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.max_length = min(max_length, self.model.max_positions)
        self.mean = mean
        self.normalises = normalises

    @classmethod
    def open(cls, folder: Path) -> NumpyBackend | None:
        """Return the backend, or None where the model needs sentence-transformers."""
        needed = [folder / name for name in ("modules.json", "config.json", "model.safetensors", "tokenizer.json")]
        if not all(path.is_file() for path in needed):
            return None
        modules = [(m["type"].rsplit(".", 1)[-1], m["path"]) for m in json.loads(needed[0].read_text())]
        if [kind for kind, _ in modules] not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
            return None
        if modules[0][1] or not bert.supports(json.loads(needed[1].read_text())):
            return None
        pooling = json.loads((folder / modules[1][1] / "config.json").read_text())
        modes = {key for key, value in pooling.items() if key.startswith("pooling_mode_") and value is True}
        modes |= {f"pooling_mode_{pooling['pooling_mode']}"} if isinstance(pooling.get("pooling_mode"), str) else set()
        mean = bool(modes & {"pooling_mode_mean_tokens", "pooling_mode_mean"})
        first = bool(modes & {"pooling_mode_cls_token", "pooling_mode_cls"})
        if len(modes) != 1 or not (mean or first) or pooling.get("include_prompt", True) is not True:
            return None
        path = folder / "sentence_bert_config.json"
        settings = json.loads(path.read_text()) if path.is_file() else {}
        if settings.get("do_lower_case"):
            return None
        return cls(
            folder, mean=mean, normalises=len(modules) == 3, max_length=settings.get("max_seq_length") or 512
        )

    def states(self, text: str, max_length: int | None) -> Float32:
        """Return float32[n_tokens, width]: the last hidden states of one text."""
        self.tokenizer.enable_truncation(min(max_length or self.max_length, self.max_length))
        states: Float32 = self.model(np.asarray([self.tokenizer.encode(text).ids]))[0]
        return states

    def pool(self, states: Float32) -> Float32:
        """Return the pooled states, not normalised."""
        pooled: Float32 = states.mean(-2) if self.mean else states[..., 0, :]
        return pooled

    def documents(self, texts: Sequence[str], max_length: int | None) -> Float32:
        """Return float32[n_texts, width], as the model gives them; batches hold texts of one length in tokens."""
        self.tokenizer.enable_truncation(min(max_length or self.max_length, self.max_length))
        ids = [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts))]
        by_length: dict[int, list[int]] = {}
        for row, tokens in enumerate(ids):
            by_length.setdefault(len(tokens), []).append(row)
        result = np.empty((len(ids), self.model.words.shape[1]), dtype=np.float32)
        batches = []
        for length, rows in sorted(by_length.items()):
            step = max(1, _BATCH_TOKENS // length)
            batches += [rows[start : start + step] for start in range(0, len(rows), step)]

        def encode(part: list[int]) -> int:
            result[part] = self.pool(self.model(np.asarray([ids[row] for row in part])))
            return len(part)

        # One BLAS thread in each of several workers: nobody waits in the middle of a batch.
        bar = tqdm(total=len(ids), desc="embedding the taxonomy", unit="text", delay=5, leave=False)
        with bar, ThreadPoolExecutor(one_blas_thread()) as workers:
            for done in workers.map(encode, batches):
                bar.update(done)
        return unit(result) if self.normalises else result


class _TorchBackend:
    """Every other model, through sentence-transformers."""

    def __init__(self, folder: Path) -> None:
        from sentence_transformers import SentenceTransformer

        try:
            self.model = SentenceTransformer(str(folder), device="cpu")
        except (OSError, ValueError, KeyError) as error:
            raise ResourceError(f"model {folder}: sentence-transformers cannot read it ({error})") from error
        self.model.eval()
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.max_length = int(self.model.max_seq_length or 512)

    def _encode(self, texts: Sequence[str], max_length: int | None, value: Any, **options: Any) -> Any:
        self.model.max_seq_length = min(max_length or self.max_length, self.max_length)
        return self.model.encode(list(texts), output_value=value, show_progress_bar=False, **options)

    def states(self, text: str, max_length: int | None) -> Float32:
        """Return float32[n_tokens, width]: the token embeddings of one text."""
        value = self._encode([text], max_length, "token_embeddings", convert_to_numpy=False)[0]
        states: Float32 = value.float().numpy()
        return states

    def embed(self, text: str, max_length: int | None) -> Float32:
        """Return float32[width], not normalised unless the model does so."""
        return np.asarray(self._encode([text], max_length, "sentence_embedding")[0], dtype=np.float32)

    def documents(self, texts: Sequence[str], max_length: int | None) -> Float32:
        """Return float32[n_texts, width], not normalised unless the model does so."""
        return np.asarray(self._encode(texts, max_length, "sentence_embedding", batch_size=64), dtype=np.float32)


def unit(vectors: Float32) -> Float32:
    """Return the rows scaled to length 1; a row of zeros stays."""
    norms = np.sqrt(np.einsum("...i,...i->...", vectors, vectors))[..., None]
    scaled: Float32 = vectors / np.maximum(norms, np.float32(1e-12))
    return scaled


class Encoder:
    """One sentence encoder.

    Queries are encoded one at a time, so that no neighbour and no padding can change a bit of them, and remembered, so
    that lanes on one model encode a query once. Loading happens at the first text that no cache answers.

    Parameters
    ----------
    model : str
        See `ranker.core.models.resolve_model`.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self.folder = resolve_model(model)
        self.revision = revision(self.folder)
        self._backend: NumpyBackend | _TorchBackend | None = None
        self._memo: OrderedDict[tuple[str, int | None], tuple[Float32, Float32 | None]] = OrderedDict()
        self._memo_bytes = 0
        self.lock = threading.RLock()

    @property
    def identity(self) -> str:
        """Return a name that two encoders share only if they hold the same weights."""
        return f"{self.model}@{self.revision}"

    @property
    def backend(self) -> NumpyBackend | _TorchBackend:
        """Return the loaded model."""
        if self._backend is None:
            self._backend = NumpyBackend.open(self.folder) or _TorchBackend(self.folder)
        return self._backend

    @property
    def parameters(self) -> int:
        """Return the number of parameters."""
        return self.backend.parameters

    def _remember(self, text: str, max_length: int | None, *, states: bool) -> tuple[Float32, Float32 | None]:
        with self.lock:  # lanes run side by side: one encodes a query, the others wait and take it
            return self._embed(text, max_length, states=states)

    def _embed(self, text: str, max_length: int | None, *, states: bool) -> tuple[Float32, Float32 | None]:
        key = (text, max_length)
        found = self._memo.get(key)
        if found is not None and (found[1] is not None or not states):
            self._memo.move_to_end(key)
            return found
        backend = self.backend
        if isinstance(backend, NumpyBackend):
            tokens = backend.states(text, max_length)
            value: tuple[Float32, Float32 | None] = (unit(backend.pool(tokens)), tokens)
        else:
            value = (
                unit(backend.embed(text, max_length)) if found is None else found[0],
                backend.states(text, max_length) if states else None,
            )
        if not np.isfinite(value[0]).all():
            raise RankerError(f"model {self.model}: embedding of {text[:60]!r} is not finite; its weights are damaged")
        for old in (found, value):
            size = 0 if old is None else old[0].nbytes + (0 if old[1] is None else old[1].nbytes)
            self._memo_bytes += size if old is value else -size
        self._memo[key] = value
        self._memo.move_to_end(key)
        while self._memo_bytes > _MEMO_BYTES and len(self._memo) > 1:
            _, (vector, dropped) = self._memo.popitem(last=False)
            self._memo_bytes -= vector.nbytes + (0 if dropped is None else dropped.nbytes)
        return value

    def query(self, text: str, *, max_length: int | None = None) -> Float32:
        """Return float32[width], length 1: the embedding of one query, prompt included by the caller."""
        return self._remember(text, max_length, states=False)[0]

    def query_tokens(self, text: str, *, max_length: int | None = None) -> Float32:
        """Return float32[n_tokens, width]: the token embeddings of one query, not normalised."""
        states = self._remember(text, max_length, states=True)[1]
        assert states is not None
        return states

    def documents(
        self,
        texts: Callable[[], Iterable[str]],
        *,
        key: dict[str, Any],
        max_length: int | None = None,
        normalise: bool = True,
        reduce: Callable[[Float32], Float32] | None = None,
    ) -> Float32:
        """Return float32[n_texts, width] from the cache, or encode and cache it.

        Rows of length 1 are kept as float16, half the size on disk; fresh ones are rounded alike, so that nothing
        depends on where they came from.

        Parameters
        ----------
        texts : callable
            Gives the texts; called only where the cache has no answer.
        key : dict
            What the rows depend on: texts, `revision`, `max_length`, `reduce`.
        max_length : int, optional
            Tokens after which a text is cut; default and upper limit is the model's own.
        normalise : bool
            Whether rows are scaled to length 1, also where the model does not do so.
        reduce : callable, optional
            Applied to the rows before they are stored; its effect must show in `key`.
        """

        def compute() -> Float32:
            rows = self.backend.documents(list(texts()), max_length)
            if not np.isfinite(rows).all():
                raise RankerError(f"model {self.model}: embeddings that are not finite; its weights are damaged")
            rows = unit(rows) if normalise else rows
            rows = rows if reduce is None else reduce(rows)
            return rows.astype(np.float16) if normalise else rows

        return cached_array("dense", {**key, "normalise": normalise}, compute).astype(np.float32, copy=False)


class EncoderPool:
    """The encoders of one system: one object per model, however many lanes name it."""

    def __init__(self) -> None:
        self._encoders: dict[str, Encoder] = {}

    def get(self, model: str) -> Encoder:
        """Return the encoder of a model, made at its first use."""
        if model not in self._encoders:
            self._encoders[model] = Encoder(model)
        return self._encoders[model]
