"""Settings of the service: the environment's RANKER_* and flags of the same names; a flag wins."""

from __future__ import annotations

import argparse
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ranker.core.errors import ArgumentError

PREFIX = "RANKER_"


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
            raise ValueError(f"is no whole number from {low} to {high}")
        return int(text)

    return read


def _number(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text) if text.replace(".", "", 1).isdigit() else math.nan
        if not low <= value <= high:
            raise ValueError(f"is no number from {low:g} to {high:g}")
        return value

    return read


def _switch(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError(f"is none of {', '.join(words)}")
    return words[text.lower()]


def _several(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _keys(text: str) -> tuple[str, ...]:
    """Return the hex SHA-256 of each key; "sha256:HEX" stands for a key that the settings do not hold themselves."""
    digests = []
    for key in _several(text):
        if key.startswith("sha256:"):
            digest = key.removeprefix("sha256:").lower()
            if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
                raise ValueError("holds a sha256: entry that is not 64 hexadecimal digits")
            digests.append(digest)
        else:
            digests.append(hashlib.sha256(key.encode()).hexdigest())
    return tuple(digests)


def _setting(default: Any, read: Callable[[str], Any], about: str, *, shown: str = "", secret: bool = False) -> Any:
    return field(default=default, metadata={"read": read, "about": about, "shown": shown, "secret": secret})


@dataclass(frozen=True)
class Settings:
    """What the service can be told; each field says what it means in its `about`."""

    config: str = _setting("embedded", str, "name of a system in configs/ or path of a YAML file")
    host: str = _setting("127.0.0.1", str, "address to listen on; 0.0.0.0 for all")
    port: int = _setting(8000, _whole(0, 65535), "port to listen on; 0 takes a free one")
    queue: int = _setting(128, _whole(1, 1_000_000), "texts that may wait or be in work; beyond, a request gets 429")
    max_batch: int = _setting(16, _whole(1, 10_000), "texts ranked together")
    window_ms: float = _setting(2.0, _number(0, 5), "milliseconds a busy service waits for more texts")
    deadline: float = _setting(0.0, _number(0, 3600), "seconds after which a request that waits gets 504; 0: never")
    max_body: int = _setting(2_000_000, _whole(100, 1_000_000_000), "bytes of a request's body; beyond, 413")
    max_texts: int = _setting(64, _whole(1, 100_000), "texts or documents of one request; beyond, 422")
    max_characters: int = _setting(20_000, _whole(1, 1_000_000), "characters of one text; beyond, 422")
    api_keys: tuple[str, ...] = _setting(
        (), _keys, "keys that open the service, separated by commas, plain or as sha256:HEX", secret=True
    )
    cors_origins: tuple[str, ...] = _setting(
        (), _several, "origins whose pages may call the service, separated by commas", shown="none"
    )
    drain: float = _setting(0.0, _number(0, 600), "seconds between SIGTERM and the end of listening, with ready at 503")
    grace: float = _setting(30.0, _number(0, 3600), "seconds that accepted requests have to be answered at shutdown")
    log_texts: bool = _setting(False, _switch, "whether logs may hold what people sent")

    def check(self) -> Settings:
        """Return the settings if they fit each other.

        Raises
        ------
        ArgumentError
            If one request could hold more texts than the queue.
        """
        if self.max_texts > self.queue:
            raise ArgumentError(f"max_texts {self.max_texts} is more than the queue holds ({self.queue}); raise queue")
        return self


def _default(entry: Any) -> str:
    value = entry.default
    return "none" if value == () else f"{value:g}" if isinstance(value, float) else str(value).lower()


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting; one that is not given stays None."""
    for entry in fields(Settings):
        about = f"{entry.metadata['about']} (default: {_default(entry)})"
        parser.add_argument(f"--{entry.name.replace('_', '-')}", metavar="V", help=about.replace("%", "%%"))


def read_settings(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> Settings:
    """Return the settings that flags and environment give.

    Parameters
    ----------
    flags : mapping of str to str or None
        By the field's name; None where the flag was not given.
    environment : mapping of str to str
        `RANKER_` and the field's name in capitals; an empty value counts as absent.

    Raises
    ------
    ArgumentError
        If a value is not allowed; the message names where it came from and, unless it is a key, the value.
    """
    values: dict[str, Any] = {}
    for entry in fields(Settings):
        name = PREFIX + entry.name.upper()
        where, text = f"--{entry.name.replace('_', '-')}", flags.get(entry.name)
        if text is None:
            where, text = name, environment.get(name) or None
        if text is None:
            continue
        try:
            values[entry.name] = entry.metadata["read"](text.strip())
        except ValueError as error:
            what = "" if entry.metadata["secret"] else f"{text!r} "
            raise ArgumentError(f"{where}: {what}{error}") from error
    return Settings(**values).check()
