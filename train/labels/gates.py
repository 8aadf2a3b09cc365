"""The questions put to a judge: prompts as versioned files, the schema of the answer, and how an answer is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from ranker.core.artifacts import digest
from ranker.core.errors import InputError, ResourceError
from ranker.core.metrics import GRADES

PROMPTS = Path(__file__).parent / "prompts"
VERSION = "v1"
GATES = ("domain", "activity", "granularity", "replacement")
DIRECT = "direct"
SEPARATOR = "\n===\n"
NEEDED = frozenset({"text", "label", "description"})
ALLOWED = NEEDED | {"gold"}


class Pair(NamedTuple):
    """A text and a skill as a judge sees them, and where the grade belongs.

    Attributes
    ----------
    text, label, description : str
        What the judge reads.
    gold : str
        Labels of the skills people marked for the text, "; " between them, "" where there are none.
    place : tuple of int
        Number of the query and position among its candidates; no judge sees it.
    """

    text: str
    label: str
    description: str
    gold: str = ""
    place: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Question:
    """One question: prompt, version, and the kind of answer.

    Attributes
    ----------
    name : str
        A gate, or "direct".
    version : str
        Version folder, name and the first digits of the file's hash: an edit that forgets to rename is still noticed.
    system, user : str
        Message texts; `user` is a `string.Template`.
    fields : frozenset of str
        Which parts of a pair the question shows.
    """

    name: str
    version: str
    system: str
    user: str
    fields: frozenset[str]

    @property
    def key(self) -> str:
        """Property of the JSON object that holds the answer."""
        return "grade" if self.name == DIRECT else "answer"

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the answer: one boolean, or one grade; nothing else, so no room for a rationale."""
        kind = {"type": "integer", "enum": list(GRADES)} if self.name == DIRECT else {"type": "boolean"}
        return {"type": "object", "properties": {self.key: kind}, "required": [self.key], "additionalProperties": False}

    def messages(self, pair: Pair) -> list[dict[str, str]]:
        """Return the chat messages of a pair. The text comes first: servers that cache prefixes read it once."""
        values = pair._asdict()
        values["description"] = pair.description or "(none)"
        values["gold"] = pair.gold or "(none known)"
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": Template(self.user).substitute(values)},
        ]

    def pair_key(self, pair: Pair) -> str:
        """Return a hash of what the question shows of a pair: a skill whose description changed is asked about anew."""
        values = pair._asdict()
        return digest([values[name] for name in sorted(self.fields)])[:32]

    def read(self, content: object) -> int:
        """Return an answer as a number: a grade, or 1 for yes and 0 for no.

        Raises
        ------
        ValueError
            If it is anything but a JSON object with exactly the answer in it.
        """
        if not isinstance(content, str):
            raise ValueError("no text")  # noqa: TRY004 - whatever is not an answer is one kind of error
        try:
            value = json.loads(content)
        except RecursionError as error:
            raise ValueError("not JSON") from error
        answer = value.get(self.key) if isinstance(value, dict) and len(value) == 1 else None
        kind = int if self.name == DIRECT else bool  # in Python True is an int, in JSON it is no grade
        if type(answer) is not kind or answer not in GRADES:
            raise ValueError(f"not an answer: {content[:80]!r}")
        return int(answer)


def load_questions(version: str = VERSION) -> Mapping[str, Question]:
    """Load the questions of a version of the prompts.

    Parameters
    ----------
    version : str
        Name of a version that comes with the package, or the path of a folder with files of the same names. A file
        holds the system message, a line "===", and the user message with $text, $label, $description and, where
        people's marks are to be shown, $gold.

    Returns
    -------
    mapping of str to Question
        The four gates in order, then "direct".

    Raises
    ------
    ResourceError
        If a file is missing; the message lists the versions there are.
    InputError
        If a file has no separator, lacks a field or names one that does not exist.
    """
    folder = PROMPTS / version if (PROMPTS / version).is_dir() else Path(version)
    return {name: _question(folder, name) for name in (*GATES, DIRECT)}


def _question(folder: Path, name: str) -> Question:
    path = folder / f"{name}.txt"
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8").replace("\r\n", "\n")
    except OSError as error:
        there = ", ".join(sorted(path.name for path in PROMPTS.iterdir() if path.is_dir()))
        raise ResourceError(f"no prompt {path}; versions there are: {there}; or give a folder that has it") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8; save it as UTF-8") from error
    system, separator, user = text.partition(SEPARATOR)
    template = Template(user)
    if not separator or not template.is_valid():
        raise InputError(f"{path}: system message, a line '===' and a user message with $text and the like are needed")
    fields = frozenset(template.get_identifiers())
    if not fields >= NEEDED or fields - ALLOWED:
        raise InputError(
            f"{path}: must show {', '.join('$' + f for f in sorted(NEEDED))} and may show $gold; "
            f"it shows {', '.join('$' + f for f in sorted(fields)) or 'nothing'}"
        )
    version = f"{folder.resolve().name}/{name}@{sha256(raw).hexdigest()[:8]}"
    return Question(name, version, system.strip(), user.strip(), fields)
