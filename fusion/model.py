"""The trained fusion: features, prior, bags, override, calibration, gate behind one `score`, saved without pickle."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fusion.bag import Bag, feature_hash, with_taught
from fusion.calibration import THRESHOLDS, Calibration
from fusion.features import FeatureTable, PoolInputs, Statics, build_features, load_statics
from fusion.gate import Gate
from fusion.override import apply_override, exact_names
from fusion.prior import SkillPrior
from ranker.core.artifacts import write_json
from ranker.core.errors import InputError, ResourceError
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32

FORMAT = 3
WITHOUT_GATE = 2
TAUGHT_FOLDER = "taught"  # of the bag that helpers have taught
WITHOUT_JUDGES = 1  # the format whose probabilities were read from the order


@dataclass(frozen=True)
class Fused:
    """What the fusion says of each pool position.

    Attributes
    ----------
    scores : float32[n_queries, k]
        Higher is better; comparable within one query.
    probabilities : dict of int to float32[n_queries, k]
        P(grade >= threshold) for thresholds 2 and 3: that the text asks for a skill at all, by the gate, times that of
        the skill in a text that does, by the calibration. Never rising down a query's ranking, but for skills that the
        override lifts: they keep their own.
    """

    scores: Float32
    probabilities: dict[int, Float32]


@dataclass(frozen=True)
class FusionModel:
    """A trained fusion.

    Attributes
    ----------
    statics : Statics
        What the features need of the taxonomy.
    bag : Bag
        The rankers and the names of their features.
    prior : SkillPrior or None
        Counts over the training queries.
    calibrations : dict of int to Calibration
        By grade threshold; of texts that ask for a skill, where there is a gate.
    groups : tuple of str
        The feature groups that are built.
    config_digest : str
        Of the system whose lanes, pool and columns it was trained on.
    override : bool
        Whether a query that names a skill puts it first.
    gate : Gate or None
        Whether a text asks for a skill at all.
    taught : Bag or None
        A bag that helpers alone have taught; its order is a feature of the other.
    about : dict
        Data fingerprint, metrics and library versions, for the manifest.
    """

    statics: Statics
    bag: Bag
    prior: SkillPrior | None
    calibrations: dict[int, Calibration]
    groups: tuple[str, ...]
    config_digest: str
    override: bool = False
    gate: Gate | None = None
    taught: Bag | None = None
    about: dict[str, Any] = field(default_factory=dict)

    def features(self, inputs: PoolInputs) -> FeatureTable:
        """Return what the bag reads of some queries."""
        return with_taught(build_features(inputs, self.statics, self.prior, self.groups), self.taught)

    def score(self, inputs: PoolInputs) -> Fused:
        """Score every pool position of some queries.

        Parameters
        ----------
        inputs : PoolInputs
            Lane scores, base score, pool and columns, as the pipeline makes them.

        Returns
        -------
        Fused
            Scores and probabilities.

        Raises
        ------
        InputError
            If lanes or columns differ from those the bag was trained on; both sides are named.
        """
        table = self.features(inputs)
        if not inputs.queries:
            empty = np.zeros(inputs.pool.shape, np.float32)
            return Fused(empty, dict.fromkeys(self.calibrations, empty))
        if table.names != self.bag.names:
            missing = [name for name in self.bag.names if name not in table.names]
            added = [name for name in table.names if name not in self.bag.names]
            detail = f"the bag lacks {added}, the table lacks {missing}" if missing or added else "their order differs"
            raise InputError(
                f"the bag was trained on {len(self.bag.names)} features ({feature_hash(self.bag.names)}), the system "
                f"makes {len(table.names)} ({feature_hash(table.names)}): {detail}; run python -m train.fusion anew"
            )
        scores, level = self.bag.score(table.values)
        asks = np.ones(1, np.float32) if self.gate is None else self.gate(inputs)
        probabilities = {grade: curve(level) * asks[:, None] for grade, curve in self.calibrations.items()}
        if self.override:
            scores = apply_override(scores, exact_names(table))
        return Fused(scores, probabilities)

    def contributions(self, inputs: PoolInputs, position: int) -> dict[str, float]:
        """Return what each feature adds at one position of the first query's pool, largest size first.

        In units of `Bag.contributions`; features that add nothing are left out.
        """
        table = self.features(inputs)
        added = self.bag.contributions(table.values[0, position])
        order = np.argsort(-np.abs(added), kind="stable")
        return {self.bag.names[i]: float(added[i]) for i in order if added[i]}

    def save(self, folder: Path) -> None:
        """Write bag, prior, calibration, gate and manifest; the same model gives the same bytes.

        The manifest is written last, so a folder with a manifest is whole.
        """
        (folder / "manifest.json").unlink(missing_ok=True)
        self.bag.save(folder)
        if self.taught is not None:
            self.taught.save(folder / TAUGHT_FOLDER)
        if self.prior is not None:
            self.prior.save(folder / "prior.npz")
        if self.gate is not None:
            self.gate.save(folder / "gate.npz")
        write_json(folder / "calibration.json", {str(k): curve.to_dict() for k, curve in self.calibrations.items()})
        write_json(
            folder / "manifest.json",
            {
                "format": FORMAT if self.gate else WITHOUT_GATE if self.bag.judges else WITHOUT_JUDGES,
                "features": list(self.bag.names),
                "feature_hash": feature_hash(self.bag.names),
                "feature_groups": list(self.groups),
                "members": len(self.bag.members),
                "judges": len(self.bag.judges),
                "least": list(self.bag.least),
                "taxonomy": self.statics.fingerprint,
                "config_digest": self.config_digest,
                "prior": self.prior is not None,
                "override": self.override,
                "gate": self.gate is not None,
                "taught": None if self.taught is None else list(self.taught.names),
                **self.about,
            },
        )

    @classmethod
    def load(cls, folder: Path | str, *, taxonomy: Taxonomy, config_digest: str) -> FusionModel:
        """Read what `save` wrote, for this taxonomy and this system.

        Parameters
        ----------
        folder : Path or str
            The checkpoint.
        taxonomy : Taxonomy
            Must have the fingerprint the model was trained on.
        config_digest : str
            `SystemConfig.digest` of the system; must be the one the model was trained on.

        Raises
        ------
        ResourceError
            If the folder (the message names those beside it) or one of its files is not there.
        InputError
            If a file is damaged, or taxonomy, config or feature names differ; both sides are named.
        """
        folder = Path(folder)
        if not folder.is_dir():
            beside = sorted(path.parent.name for path in folder.parent.glob("*/manifest.json"))
            raise ResourceError(
                f"no trained bag {folder.name} in {folder.parent} (no manifest.json); there are: "
                f"{', '.join(beside) or 'none'}; or run python -m train.fusion --out {folder}"
            )
        manifest = _read(folder / "manifest.json")
        try:
            if manifest["format"] not in (known := (WITHOUT_JUDGES, WITHOUT_GATE, FORMAT)):
                raise InputError(
                    f"{folder} has format {manifest['format']}; known: {', '.join(map(str, known))}; train it anew"
                )
            for what, stored, given in (
                ("taxonomy", manifest["taxonomy"], taxonomy.fingerprint),
                ("config digest", manifest["config_digest"], config_digest),
                ("feature hash", manifest["feature_hash"], feature_hash(manifest["features"])),
            ):
                if stored != given:
                    raise InputError(
                        f"{folder} was trained with {what} {stored}, here it is {given} (another ESCO version, a "
                        "private extension or a changed config has another one); use a system without a bag, such as "
                        "lanes, or run python -m train.fusion anew"
                    )
            judges = manifest["judges"] if manifest["format"] != WITHOUT_JUDGES else 0
            bag = Bag.load(folder, manifest["features"], manifest["members"], judges, manifest.get("least", ()))
            curves = {int(k): Calibration.from_dict(v) for k, v in _read(folder / "calibration.json").items()}
            prior_file = folder / "prior.npz" if manifest["prior"] else None
            gate = Gate.load(folder / "gate.npz", len(taxonomy)) if manifest.get("gate") else None
            names = manifest.get("taught")
            taught = Bag.load(folder / TAUGHT_FOLDER, names, 1) if names else None
            groups, override = tuple(manifest["feature_groups"]), bool(manifest["override"])
        except (KeyError, TypeError) as error:
            raise InputError(f"{folder}/manifest.json lacks or garbles {error}; train it anew") from error
        if set(curves) != set(THRESHOLDS):
            raise InputError(f"{folder}/calibration.json has grades {sorted(curves)}, expected {sorted(THRESHOLDS)}")
        graph = None if prior_file is None else SkillPrior.read_graph(prior_file)
        statics = load_statics(taxonomy, graph)
        prior = None if prior_file is None else SkillPrior.load(prior_file, statics.levels, graph)
        return cls(statics, bag, prior, curves, groups, config_digest, override, gate, taught)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ResourceError(f"no {path.name} in {path.parent}; run python -m train.fusion --out {path.parent}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); train it anew") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} holds no JSON object; train it anew")
    return value
