"""What lanes keep in a checkpoint: one file, and a JSON beside it that states its format and hash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ranker.core.artifacts import sha256_file
from ranker.core.config import CONFIG_DIR
from ranker.core.errors import InputError, ResourceError


def checkpoint_folder(checkpoint: str) -> Path:
    """Return a checkpoint's folder: absolute, from the working folder, or under checkpoints/."""
    folder = Path(checkpoint)
    return folder if folder.is_dir() else CONFIG_DIR.parent / "checkpoints" / checkpoint


def read_about(folder: Path, file: str, version: int, *, missing: str, changed: str) -> dict[str, Any]:
    """Return the JSON beside a file, once the file is there and is the one that it describes.

    Parameters
    ----------
    folder : Path
        Of both.
    file : str
        Name of the file; that of the JSON differs in its ending.
    version : int
        The format that is expected.
    missing, changed : str
        What to do where a file is not there, and where it is another.

    Raises
    ------
    ResourceError
        If a file is not there.
    InputError
        If it is of another format or not the file described.
    ValueError, KeyError, TypeError
        If the JSON is none or lacks a key.
    """
    about_file = f"{Path(file).stem}.json"
    for name in (about_file, file):
        if not (folder / name).is_file():
            raise ResourceError(f"no {name} in {folder}; {missing}")
    about: dict[str, Any] = json.loads((folder / about_file).read_text(encoding="utf-8"))
    if about["format"] != version:
        raise InputError(f"{folder}/{about_file} is of another format; make it anew")
    if sha256_file(folder / file) != about["sha256"]:
        raise InputError(f"{folder}/{file} is not the file that {about_file} describes; {changed}")
    return about
