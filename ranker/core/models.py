"""Where a neural model's files lie, which weights they hold, and how many parameters."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path

from ranker.core.artifacts import sha256_file
from ranker.core.config import CONFIG_DIR
from ranker.core.errors import ResourceError

MODEL_FILES = ("modules.json", "config.json")
ADAPTER_FILES = ("adapter_config.json",)
_FETCH = ContextVar("fetch", default=True)


@contextmanager
def local_only() -> Iterator[None]:
    """Let `resolve_model` take what is on disk and fetch nothing, for as long as the block runs."""
    token = _FETCH.set(False)
    try:
        yield
    finally:
        _FETCH.reset(token)


def resolve_model(model: str, *, holds: Sequence[str] = MODEL_FILES) -> Path:
    """Return the folder of a model.

    Parameters
    ----------
    model : str
        A path (absolute, or from the working folder, or from the project's folder), "package:NAME" for the folder
        `model/` inside an installed package, whose code is not run, or a hub id "owner/name" or "owner/name@revision".
    holds : sequence of str
        Files of which the folder must hold at least one; `ADAPTER_FILES` for a PEFT adapter.

    Raises
    ------
    ResourceError
        If it is not there; for a hub id also if the hub cannot be reached, or refuses the model or the revision.
    """
    if model.startswith("package:"):
        package = model.removeprefix("package:")
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        if spec is None or spec.origin is None:
            raise ResourceError(f"model {model}: no such package; run: pip install {package.replace('_', '-')}")
        folder = Path(spec.origin).parent / "model"
        if not (folder / "config.json").is_file():
            raise ResourceError(f"model {model}: the package holds no model/config.json; reinstall it")
        return folder
    for folder in (Path(model).expanduser(), CONFIG_DIR.parent / model):
        if folder.is_dir():
            if not any((folder / name).is_file() for name in holds):
                names = f"neither {' nor '.join(holds)}" if len(holds) > 1 else f"no {holds[0]}"
                raise ResourceError(f"model {model}: {folder} holds {names}")
            return folder
    if model.count("/") != 1 or model[0] in "./~" or (CONFIG_DIR.parent / model.split("/")[0]).is_dir():
        raise ResourceError(f"model {model}: no such folder, and not a hub id (owner/name) nor package:NAME")
    from huggingface_hub import snapshot_download  # costs half a second, and only hub models need it

    name, _, wanted = model.partition("@")
    try:
        folder = Path(
            snapshot_download(
                name,
                revision=wanted or None,
                ignore_patterns=["*.onnx", "*.h5", "*.msgpack", "openvino*", "*.ot"],
                local_files_only=not _FETCH.get(),
            )
        )
    except (OSError, ValueError) as error:
        raise ResourceError(f"model {model}: {_refusal(error, wanted)}") from error
    return folder


def _refusal(error: Exception, wanted: str) -> str:
    """Return what the hub's refusal means, and what to do."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return "is gated; accept its terms on its page on the hub, then run: hf auth login"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"has no revision {wanted or 'main'!r}; look at its history on the hub"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "is not on the hub, or private; check its name, or run: hf auth login"
    # The hub's client says no more than this where it cannot be reached, at length.
    unreached = isinstance(error, errors.LocalEntryNotFoundError)
    said = "" if unreached else f" ({type(error).__name__}: {' '.join(str(error).split())[:120]})"
    return f"neither cached nor to be had from the hub{said}; connect once, or name a folder or package"


def probe_model(model: str, *, holds: str = "config.json") -> None:
    """Raise where a hub model cannot be had, at the price of one small file of it.

    Parameters
    ----------
    model : str
        "owner/name" or "owner/name@revision".
    holds : str
        The file that is fetched.

    Raises
    ------
    ResourceError
        Not on the hub, no such revision, gated, or no hub to be reached; the message says which.
    """
    from huggingface_hub import errors, hf_hub_download

    name, _, wanted = model.partition("@")
    try:
        hf_hub_download(name, holds, revision=wanted or None)
    except errors.LocalEntryNotFoundError as error:
        raise ResourceError(_refusal(error, wanted)) from error
    except errors.EntryNotFoundError:
        return  # the model is there and may be read; its files have other names
    except (OSError, ValueError) as error:
        raise ResourceError(_refusal(error, wanted)) from error


def revision(folder: Path) -> str:
    """Return a hash of everything in a model's folder that changes its output."""
    kinds = {".safetensors", ".bin", ".json", ".txt"}
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.suffix in kinds]
    if any(p.suffix == ".safetensors" for p in files):
        files = [p for p in files if p.suffix != ".bin"]
    parts = [f"{p.relative_to(folder)} {_hash(p)}" for p in files if not p.name.startswith(("README", "."))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _hash(path: Path) -> str:
    state = path.stat()
    return _hash_once(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=1024)
def _hash_once(path: Path, size: int, changed: int) -> str:
    return sha256_file(path)


def parameter_count(folder: Path) -> int | None:
    """Return the number of parameters in a folder, without loading them; None where it holds no weights.

    Read from the headers of safetensors, those of sentence-transformers' modules included; where there are none, from
    a *.bin file, which is mapped and not read. Position numbers that some checkpoints keep beside the weights are no
    parameters.
    """
    from safetensors import SafetensorError, safe_open

    modules = [file for path in _module_paths(folder) for file in sorted((folder / path).rglob("*.safetensors"))]
    total, files = 0, [*sorted(folder.glob("*.safetensors")), *modules]
    if not files:
        return _bin_count(folder)
    for path in files:
        try:
            with safe_open(path, framework="numpy") as tensors:
                total += sum(
                    math.prod(tensors.get_slice(name).get_shape())
                    for name in tensors.keys()  # noqa: SIM118  a file handle, not a dict
                    if not name.endswith("position_ids")
                )
        except (SafetensorError, OSError) as error:
            raise ResourceError(f"{path} cannot be read ({error}); fetch it again") from error
    return total


def _module_paths(folder: Path) -> list[str]:
    file = folder / "modules.json"
    modules = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    return [path for path in (module["path"] for module in modules) if path]


def _bin_count(folder: Path) -> int | None:
    """Return the number of parameters in pytorch_model*.bin files; weights that share memory count once."""
    files = sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        return None
    import torch

    sizes: dict[int, int] = {}
    for path in files:
        try:
            weights = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except (OSError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
            raise ResourceError(f"{path} cannot be read ({error}); fetch it again") from error
        for name, tensor in weights.items():
            if not name.endswith("position_ids"):
                sizes[tensor.data_ptr()] = tensor.numel()
    return sum(sizes.values())
