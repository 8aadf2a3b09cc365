"""Memory lane: what was right for the labelled texts most like this one (k nearest neighbours).

    score(q, s) = sum over the k nearest labelled texts t of w(q, t) * gain(t, s)

where w is the softmax of the cosines over a temperature, and gain is (2^grade - 1) / 15, zero where t's labels do not
hold the skill. Nothing is trained: a text that is added to the memory counts from then on. `train.memory` fills it.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lanes.checkpoint import checkpoint_folder, read_about
from lanes.encoder import EncoderPool
from lanes.tiles import Tiles
from lanes.views import check_number, unfitted
from ranker.core.artifacts import atomic_path, sha256_file, write_json
from ranker.core.errors import InputError
from ranker.core.order import top_rows
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32

FORMAT = 1
K = 100
TEMPERATURE = 0.1


@dataclass(frozen=True)
class Memory:
    """Labelled texts, without the texts.

    Attributes
    ----------
    model : str
        The encoder of the vectors.
    vectors : float32[n_texts, width]
        The texts' embeddings, length 1.
    uris : tuple of str
        The skills that the labels speak of.
    starts : int[n_texts + 1]
        Where each text's labels start in `skills` and `grades`.
    skills : int[n_labels]
        Rows in `uris`.
    grades : uint8[n_labels]
        From 1 to 4; what is not there counts nothing.
    """

    model: str
    vectors: Float32
    uris: tuple[str, ...]
    starts: NDArray[np.int32]
    skills: NDArray[np.int32]
    grades: NDArray[np.uint8]

    @classmethod
    def of(cls, model: str, vectors: Float32, grades: NDArray[np.int8], uris: Sequence[str]) -> Memory:
        """Return the memory of some texts.

        Parameters
        ----------
        model : str
            The encoder.
        vectors : float32[n_texts, width]
        grades : int8[n_texts, n_skills]
            Unjudged skills are below 0.
        uris : sequence of str
            The skills, by column.
        """
        rows, columns = np.nonzero(grades > 0)
        known, skills = np.unique(columns, return_inverse=True)
        starts = np.searchsorted(rows, np.arange(len(grades) + 1))
        return cls(
            model, vectors, tuple(uris[column] for column in known), starts.astype(np.int32), skills.astype(np.int32),
            grades[rows, columns].astype(np.uint8),
        )

    def gains(self, taxonomy: Taxonomy) -> sparse.csr_array:
        """Return float32[n_texts, n_skills]; skills that the taxonomy does not have are left out."""
        column = np.array([taxonomy.index.get(uri, len(taxonomy)) for uri in self.uris], dtype=np.int32)[self.skills]
        gain = ((np.exp2(self.grades.astype(np.float32)) - 1) / 15).astype(np.float32)
        whole = sparse.csr_array((gain, column, self.starts), shape=(len(self.vectors), len(taxonomy) + 1))
        return sparse.csr_array(whole[:, : len(taxonomy)])

    def save(self, folder: Path) -> None:
        """Write memory.json and memory.npz (vectors in float16)."""
        with atomic_path(folder / "memory.npz") as path, path.open("wb") as stream:
            np.savez_compressed(
                stream,
                vectors=self.vectors.astype(np.float16),
                uris=np.frombuffer("\n".join(self.uris).encode(), dtype=np.uint8),
                starts=self.starts,
                skills=self.skills,
                grades=self.grades,
            )
        about = {"format": FORMAT, "model": self.model, "texts": len(self.vectors), "labels": len(self.skills)}
        write_json(folder / "memory.json", {**about, "sha256": sha256_file(folder / "memory.npz")})

    @classmethod
    def load(cls, folder: Path) -> Memory:
        """Read what `save` wrote.

        Raises
        ------
        ResourceError
            If a file is not there.
        InputError
            If it is of another format or damaged.
        """
        missing = f"restore it, or fill it: python -m train.memory --helpers DIR --out {folder}"
        try:
            about = read_about(folder, "memory.npz", FORMAT, missing=missing, changed="restore it")
            if not about["labels"]:
                raise InputError(f"{folder} remembers no label; fill it with labelled texts by train.memory")
            with np.load(folder / "memory.npz", allow_pickle=False) as stored:
                return cls(
                    model=about["model"],
                    vectors=stored["vectors"].astype(np.float32),
                    uris=tuple(stored["uris"].tobytes().decode().split("\n")),
                    starts=stored["starts"],
                    skills=stored["skills"],
                    grades=stored["grades"],
                )
        except (ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise InputError(f"{folder} holds no readable memory ({error}); make it anew") from error


def recall(cosines: Float32, gains: sparse.csr_array, k: int, temperature: float) -> Float32:
    """Return float32[n_skills]: the gains of the k texts of highest cosine, weighed by its softmax.

    Parameters
    ----------
    cosines : float32[n_texts]
        Of one query and the labelled texts; a text at minus infinity is left out.
    gains : float32[n_texts, n_skills]
    """
    rows = top_rows(cosines[None], min(k, len(cosines)))[0]
    weight = np.exp((cosines[rows] - cosines[rows[0]]) / np.float32(temperature))
    return np.asarray(gains[rows].T @ (weight / weight.sum()), dtype=np.float32)


class MemoryLane:
    """The labels of the nearest texts.

    Parameters
    ----------
    name : str
        Feature prefix.
    encoders : EncoderPool
        Where lanes share their models.
    checkpoint : str
        Folder of the memory, absolute, from the working folder, or under checkpoints/.
    k : int
        How many texts are asked.
    temperature : float
        The cosine over which a text's weight falls by a factor of e.

    Raises
    ------
    ArgumentError
        For a value that is not allowed.
    ResourceError, InputError
        If the memory or its encoder is not there or damaged.
    """

    def __init__(
        self, name: str, *, encoders: EncoderPool, checkpoint: str, k: int = K, temperature: float = TEMPERATURE
    ) -> None:
        check_number(k, 1, 100_000, option="k", lane=name, whole=True)
        check_number(temperature, 0.001, 10, option="temperature", lane=name)
        self.name = name
        self.memory = Memory.load(checkpoint_folder(checkpoint))
        self.encoder = encoders.get(self.memory.model)
        self._k, self._temperature = k, temperature
        self._texts: Tiles | None = None
        self._gains: sparse.csr_array | None = None

    def fit(self, taxonomy: Taxonomy) -> None:
        """Find the labels' skills in the taxonomy."""
        self._gains = self.memory.gains(taxonomy)
        self._texts = Tiles(self.memory.vectors)

    def score(self, queries: Sequence[str]) -> Float32:
        """Return float32[n_queries, n_skills]; one query at a time, so that no other can change it."""
        if self._texts is None or self._gains is None:
            raise unfitted(self.name)
        result = np.empty((len(queries), self._gains.shape[1]), dtype=np.float32)
        for row, query in enumerate(queries):
            cosines = self._texts.dot(self.encoder.query(query)[None])[0]
            result[row] = recall(cosines, self._gains, self._k, self._temperature)
        return result

    def backbones(self) -> Mapping[str, int]:
        """Return the encoder's parameters; the texts' vectors are an index, as the skills' are."""
        return {self.encoder.identity: self.encoder.parameters}
