"""Where a neural model's files lie, which weights they hold, and how many parameters."""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path

from ranker.core.artifacts import sha256_file
from ranker.core.config import CONFIG_DIR
from ranker.core.errors import ResourceError

MODEL_FILES = ("modules.json", "config.json")
ADAPTER_FILES = ("adapter_config.json",)


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
                name, revision=wanted or None, ignore_patterns=["*.onnx", "*.h5", "*.msgpack", "openvino*", "*.ot"]
            )
        )
    except (OSError, ValueError) as error:
        raise ResourceError(
            f"model {model}: neither cached nor to be had from the hub ({type(error).__name__}: {str(error)[:200]}); "
            "connect once, or name a folder or package in the config"
        ) from error
    return folder


def revision(folder: Path) -> str:
    """Return a hash of everything in a model's folder that changes its output."""
    kinds = {".safetensors", ".bin", ".json", ".txt"}
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.suffix in kinds]
    if any(p.suffix == ".safetensors" for p in files):
        files = [p for p in files if p.suffix != ".bin"]
    parts = [f"{p.relative_to(folder)} {sha256_file(p)}" for p in files if not p.name.startswith(("README", "."))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def parameter_count(folder: Path) -> int | None:
    """Return the number of parameters in a folder's safetensors, read from their headers; None where it has none.

    Position numbers that some checkpoints keep beside the weights are no parameters.
    """
    from safetensors import SafetensorError, safe_open

    total, files = 0, sorted(folder.glob("*.safetensors"))
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
    return total if files else None
