"""Sentence encoders: a model by path, package or hub id; one object per model, shared between lanes."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from packaging.version import Version
from tqdm.auto import tqdm

from lanes import bert
from lanes.threads import one_blas_thread
from ranker.core.artifacts import cached_array
from ranker.core.errors import ArgumentError, RankerError, ResourceError
from ranker.core.models import parameter_count, resolve_model, revision
from ranker.core.types import Float32

# Where the memo of token states ends; 64 MiB hold some 1,500 sentences of MiniLM's width.
_MEMO_BYTES = 64 * 2**20
_BATCH_TOKENS = 2_048
PRECISIONS = ("float32", "float16", "bfloat16")
UNREADABLE = (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError)
_Shared = TypeVar("_Shared")


def torch_device() -> str:
    """Return where torch models run: the first GPU where there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def torch_dtype(precision: str) -> dict[str, Any]:
    """Return the argument of `from_pretrained` that sets the precision; its name changed with transformers 4.56."""
    import torch
    import transformers

    renamed = Version(transformers.__version__) >= Version("4.56")
    return {"dtype" if renamed else "torch_dtype": getattr(torch, precision)}


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
        return cls(folder, mean=mean, normalises=len(modules) == 3, max_length=settings.get("max_seq_length") or 512)

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
    """Every other model, through sentence-transformers, on the GPU where there is one."""

    def __init__(self, folder: Path, precision: str) -> None:
        from sentence_transformers import SentenceTransformer

        try:
            dtype = torch_dtype(precision)
            self.model = SentenceTransformer(str(folder), device=torch_device(), model_kwargs=dtype)
        except UNREADABLE as error:
            raise ResourceError(f"model {folder}: sentence-transformers cannot read it ({error})") from error
        self.model.to(next(iter(dtype.values()))).eval()  # the modules after the transformer as well
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.max_length = int(self.model.max_seq_length or 512)

    def _encode(self, texts: Sequence[str], max_length: int | None, value: Any, **options: Any) -> Any:
        self.model.max_seq_length = min(max_length or self.max_length, self.max_length)
        return self.model.encode(list(texts), output_value=value, show_progress_bar=False, **options)

    def states(self, text: str, max_length: int | None) -> Float32:
        """Return float32[n_tokens, width]: the token embeddings of one text."""
        value = self._encode([text], max_length, "token_embeddings", convert_to_numpy=False)[0]
        states: Float32 = value.float().cpu().numpy()
        return states

    def embed(self, text: str, max_length: int | None, branch: str | None) -> Float32:
        """Return float32[width], not normalised unless the model does so."""
        vector: Float32 = self.documents([text], max_length, branch)[0]
        return vector

    def documents(self, texts: Sequence[str], max_length: int | None, branch: str | None) -> Float32:
        """Return float32[n_texts, width], not normalised unless the model does so."""
        task = {} if branch is None else {"task": branch}
        rows = self._encode(texts, max_length, "sentence_embedding", batch_size=64, **task)
        vectors: Float32 = np.asarray(rows, dtype=np.float32)
        return vectors


def unit(vectors: Float32) -> Float32:
    """Return the rows scaled to length 1; a row of zeros stays."""
    norms = np.sqrt(np.einsum("...i,...i->...", vectors, vectors))[..., None]
    scaled: Float32 = vectors / np.maximum(norms, np.float32(1e-12))
    return scaled


def branches(folder: Path) -> tuple[str, ...]:
    """Return the named branches of a model whose last layers differ between kinds of text; most models have none.

    sentence-transformers calls the module Router (earlier Asym).
    """
    file = folder / "modules.json"
    for module in json.loads(file.read_text()) if file.is_file() else ():
        if module["type"].rsplit(".", 1)[-1] in {"Router", "Asym"}:
            for name in ("router_config.json", "config.json"):
                if (path := folder / module["path"] / name).is_file():
                    return tuple(json.loads(path.read_text())["structure"])
    return ()


class Encoder:
    """One sentence encoder.

    Queries are encoded one at a time, so that no neighbour and no padding can change a bit of them, and remembered, so
    that lanes on one model encode a query once. Loading happens at the first text that no cache answers.

    Parameters
    ----------
    model : str
        See `ranker.core.models.resolve_model`.
    precision : {"float32", "float16", "bfloat16"}
        Of the weights; the halves only in torch.
    """

    def __init__(self, model: str, precision: str = "float32") -> None:
        self.model = model
        self.precision = precision
        self.folder = resolve_model(model)
        self.revision = revision(self.folder) + ("" if precision == "float32" else f"-{precision}")
        self._branches = branches(self.folder)
        self._backend: NumpyBackend | _TorchBackend | None = None
        self._memo: OrderedDict[tuple[str, int | None, str | None], tuple[Float32, Float32 | None]] = OrderedDict()
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
            numpy = NumpyBackend.open(self.folder) if self.precision == "float32" else None
            self._backend = numpy or _TorchBackend(self.folder, self.precision)
        return self._backend

    @cached_property
    def parameters(self) -> int:
        """Return the number of parameters, read from the files where they state it."""
        return parameter_count(self.folder) or self.backend.parameters

    def check_branch(self, branch: str | None, where: str) -> None:
        """Raise an error that lists the model's branches where one is missing or unknown.

        A model with branches takes one of them for a text that names none, without a word; so it must be named.

        Raises
        ------
        ArgumentError
            With `where` in front, which says whose option it is.
        """
        if branch not in (self._branches or (None,)):
            there = f"it has {', '.join(self._branches)}" if self._branches else "it has none"
            raise ArgumentError(f"{where}: {branch!r} is no branch of model {self.model}; {there}")

    def _remember(
        self, text: str, max_length: int | None, *, states: bool, branch: str | None = None
    ) -> tuple[Float32, Float32 | None]:
        with self.lock:  # lanes run side by side: one encodes a query, the others wait and take it
            return self._embed(text, max_length, states=states, branch=branch)

    def _embed(
        self, text: str, max_length: int | None, *, states: bool, branch: str | None
    ) -> tuple[Float32, Float32 | None]:
        key = (text, max_length, branch)
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
                unit(backend.embed(text, max_length, branch)) if found is None else found[0],
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

    def query(self, text: str, *, max_length: int | None = None, branch: str | None = None) -> Float32:
        """Return float32[width], length 1: the embedding of one query, prompt included by the caller."""
        return self._remember(text, max_length, states=False, branch=branch)[0]

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
        branch: str | None = None,
        exact: bool = False,
    ) -> Float32:
        """Return float32[n_texts, width] from the cache, or encode and cache it.

        Rows of length 1 are kept as float16 unless `exact`, half the size on disk; fresh ones are rounded alike, so
        that nothing depends on where they came from.

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
        branch : str, optional
            Of a model that has branches; its name must show in `key`.
        exact : bool
            Whether rows of length 1 are kept as float32; must show in `key`.
        """

        def compute() -> Float32:
            backend, plain = self.backend, list(texts())
            if isinstance(backend, NumpyBackend):
                rows = backend.documents(plain, max_length)
            else:
                rows = backend.documents(plain, max_length, branch)
            if not np.isfinite(rows).all():
                raise RankerError(f"model {self.model}: embeddings that are not finite; its weights are damaged")
            rows = unit(rows) if normalise else rows
            rows = rows if reduce is None else reduce(rows)
            return rows.astype(np.float16) if normalise and not exact else rows

        return cached_array("dense", {**key, "normalise": normalise}, compute).astype(np.float32, copy=False)


class EncoderPool:
    """The models of one system: one object per model and precision, however many lanes name it."""

    def __init__(self) -> None:
        self._shared: dict[tuple[Any, str, str], Any] = {}

    def get(self, model: str, precision: str = "float32") -> Encoder:
        """Return the sentence encoder of a model, made at its first use."""
        return self.share(Encoder, model, precision)

    def share(self, kind: Callable[[str, str], _Shared], model: str, precision: str) -> _Shared:
        """Return the one object that `kind(model, precision)` makes."""
        key = (kind, model, precision)
        if key not in self._shared:
            self._shared[key] = kind(model, precision)
        found: _Shared = self._shared[key]
        return found
