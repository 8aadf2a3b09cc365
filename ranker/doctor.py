"""What is installed, cached and reachable, and what each missing piece costs: `python -m ranker.doctor`."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement

from ranker.core.artifacts import SHIPPED, cache_dir, sha256_file
from ranker.core.cli import emit, parser, run, say, table
from ranker.core.config import CONFIG_DIR, SystemConfig, TaxonomyConfig, load_config
from ranker.core.errors import PrerequisiteError, RankerError, ResourceError, install_command
from ranker.core.sources import cache_file
from ranker.core.taxonomy import Taxonomy

OK, WARN, FAIL = "ok", "warn", "fail"
PROJECT = Path(__file__).resolve().parents[1]
DISTRIBUTION = "graded-ranker"
DEFAULT = "embedded"  # the system that ships whole
PYTHON = (3, 11)
HUB_SECONDS = 3.0
LOW_DISK, NO_DISK = 2e9, 2e8  # bytes: building every cache takes less than the first, one array about the second
COST = {
    "train": "no official tasks, no comparison with workrb's models, no training, no plots",
    "serve": "no HTTP service",
    "scale": "no batch tagging of parquet or remote files, or over several machines",
    "llm": "no language model as judge or last stage",
    "gpu": "no several GPUs, no language models in 4 bits",
    "flag": "no FlagEmbedding lanes and columns",
    "int8": "no cross-encoders in int8",
    "dev": "no tests and no lint",
}


class Check(NamedTuple):
    """One line of the report: what was looked at, ok, warn or fail, what was found, and what to do."""

    name: str
    status: str
    found: str
    advice: str = ""


def python_check(version: tuple[int, ...] = tuple(sys.version_info[:3])) -> Check:
    """Check the interpreter."""
    found = f"{'.'.join(map(str, version))} on {platform.system()} {platform.machine()}"
    if version[:2] < PYTHON:
        return Check("python", FAIL, found, f"install Python {'.'.join(map(str, PYTHON))} or newer")
    return Check("python", OK, found)


def requirements() -> dict[str, list[Requirement]]:
    """Return what the distribution asks for, by extra; the core is under ""."""
    file = PROJECT / "pyproject.toml"
    if file.is_file():
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        named = {"": project["dependencies"], **project.get("optional-dependencies", {})}
        return {extra: [Requirement(line) for line in lines] for extra, lines in named.items()}
    grouped: dict[str, list[Requirement]] = {"": []}
    for line in metadata.requires(DISTRIBUTION) or []:
        requirement = Requirement(line)
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", str(requirement.marker or ""))
        grouped.setdefault(extra.group(1) if extra else "", []).append(requirement)
    return grouped


def package_checks(
    wanted: Mapping[str, Sequence[Requirement]], version_of: Callable[[str], str] = metadata.version
) -> Iterator[Check]:
    """Check that packages are there and within the range that was tried: a line for the core, one per extra.

    Parameters
    ----------
    wanted : mapping of str to sequence of Requirement
        By extra; "" is the core.
    version_of : callable
        Raises `PackageNotFoundError` for a package that is not installed.
    """
    for extra, needed in wanted.items():
        there, missing, strange = [], [], []
        for requirement in needed:
            marker = requirement.marker
            if marker is not None and not marker.evaluate({"extra": extra}):
                continue
            try:
                version = version_of(requirement.name)
            except metadata.PackageNotFoundError:
                missing.append(requirement.name)
                continue
            there.append(f"{requirement.name} {version}")
            if not requirement.specifier.contains(version, prereleases=True):
                strange.append(f"{requirement.name} {version} (tried: {requirement.specifier})")
        name = f"packages: {extra}" if extra else "packages"
        install = install_command(extra)
        if missing:
            cost = f"{COST.get(extra, 'the extra is incomplete')}; " if extra else ""
            yield Check(name, WARN if extra else FAIL, f"missing: {', '.join(missing)}", f"{cost}run: {install}")
        if strange:
            yield Check(name, WARN, f"outside the tried range: {', '.join(strange)}", f"run: {install}")
        if not missing and not strange:
            yield Check(name, OK, ", ".join(there))


def config_checks(folder: Path, checkpoints: Path, taxonomy: Taxonomy | None) -> Iterator[Check]:
    """Check that every config is valid, and that the trained bag it names is there, whole, and fits it.

    Whether a bag fits can only be asked with the taxonomy at hand; without one the bag is only looked for.
    """
    files = sorted(folder.glob("*.yaml"))
    if not files:
        yield Check("configs", FAIL, f"none in {folder}", "reinstall the project")
    for file in files:
        name = f"config: {file.stem}"
        try:
            config = load_config(file)
        except RankerError as error:
            yield Check(name, FAIL, str(error), "mend the file")
            continue
        found = f"{len(config.lanes)} lanes, {len(config.columns)} columns, pool {config.pool.size}"
        try:
            yield Check(name, OK, found + _bag_state(config, checkpoints, taxonomy))
        except RankerError as error:
            advice = f"run: python -m train.fusion --config {file.stem}; until then it cannot rank"
            # A bag that was never trained is none that is broken, but the default system must have its own.
            absent = isinstance(error, ResourceError) and file.stem != DEFAULT
            yield Check(name, WARN if absent else FAIL, f"{found}; {error}", advice)


def _bag_state(config: SystemConfig, checkpoints: Path, taxonomy: Taxonomy | None) -> str:
    """Return what can be said of a system's trained bag; raises where it cannot be used."""
    if config.fusion.checkpoint is None:
        return ""
    bag = Path(config.fusion.checkpoint)
    folder = bag if bag.is_dir() else checkpoints / bag
    if not (folder / "manifest.json").is_file():
        raise ResourceError(f"trained bag {bag} is missing")
    # An own path or extension gives this system another taxonomy than the cached one.
    if taxonomy is None or config.taxonomy != TaxonomyConfig():
        return f"; trained bag {bag} is there"
    from fusion.model import FusionModel

    FusionModel.load(folder, taxonomy=taxonomy, config_digest=config.digest)
    return f"; trained bag {bag} is whole and fits"


def taxonomy_check(file: Path) -> tuple[Check, Taxonomy | None]:
    """Check the cached taxonomy of the default source, and return it where it is whole."""
    build = "run: python -m ranker.taxonomy build"
    if not file.is_file():
        advice = f"it is built at first use, from the package index; or {build}"
        return Check("taxonomy", WARN, "not built yet", advice), None
    try:
        taxonomy = Taxonomy.load(file)
    except RankerError as error:
        return Check("taxonomy", WARN, str(error), f"it is built anew at the next use; or {build}"), None
    found = f"{len(taxonomy)} skills, version {taxonomy.version or 'unknown'}, fingerprint {taxonomy.fingerprint}"
    return Check("taxonomy", OK, found), taxonomy


def cache_check(folder: Path) -> Check:
    """Report the size of the cached arrays."""
    files = list(folder.glob("*.npy")) if folder.is_dir() else []
    if not files:
        return Check("cached arrays", WARN, "none", "the first ranking of a system takes a minute or more to index")
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    return Check("cached arrays", OK, f"{len(files)} files, {megabytes:.0f} MB in {folder}")


def checkpoint_checks(folder: Path) -> Iterator[Check]:
    """Check that each checkpoint has a manifest and that the files it lists have the hashes it states.

    The folder of shipped arrays holds what can be computed, under names that are its hashes, and needs no manifest.
    """
    for place in sorted(path for path in folder.glob("*") if path.is_dir() and path.name != SHIPPED.name):
        name = f"checkpoint: {place.name}"
        manifest = place / "manifest.json"
        try:
            listed = _listed_files(json.loads(manifest.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            yield Check(name, FAIL, f"no readable manifest.json ({error})", "restore or retrain it")
            continue
        listed |= _lane_files(place)
        missing = [file for file in listed if not (place / file).is_file()]
        changed = [f for f, sha in listed.items() if f not in missing and sha and sha256_file(place / f) != sha]
        if missing or changed:
            faults = [f"{file} is missing" for file in missing] + [f"{file} has changed" for file in changed]
            yield Check(name, FAIL, ", ".join(faults), "restore or retrain it")
        else:
            hashed = sum(map(bool, listed.values()))
            yield Check(name, OK, f"manifest readable, {len(listed)} files listed and there, {hashed} by hash")


def _listed_files(manifest: object) -> dict[str, str]:
    """Return {file: SHA-256} as a manifest's `files` lists them; "" where it states no hash."""
    files = manifest.get("files", {}) if isinstance(manifest, dict) else {}
    if isinstance(files, dict):
        return {str(file): sha if isinstance(sha, str) else "" for file, sha in files.items()}
    return {str(file): "" for file in files} if isinstance(files, list) else {}


def _lane_files(place: Path) -> dict[str, str]:
    """Return {file: SHA-256} of what lanes read, which tower.json and memory.json beside it state."""
    found = {}
    for about in sorted(place.glob("*/*.json")):
        if about.stem in (kinds := {"tower": ".safetensors", "memory": ".npz"}):
            try:
                sha = str(json.loads(about.read_text(encoding="utf-8"))["sha256"])
            except (OSError, ValueError, KeyError, TypeError):
                sha = "unreadable"
            found[str(about.with_suffix(kinds[about.stem]).relative_to(place))] = sha
    return found


def hub_check(endpoint: str, *, offline: bool, seconds: float = HUB_SECONDS) -> Check:
    """Ask whether the model hub answers; that it does not is never an error."""
    cost = "the official tasks and hub models need it; the embedded system does not"
    if offline:
        return Check("model hub", WARN, "switched off by HF_HUB_OFFLINE", cost)
    if not endpoint.startswith(("http://", "https://")):
        return Check("model hub", WARN, f"HF_ENDPOINT {endpoint!r} is no web address", cost)
    request = urllib.request.Request(endpoint, method="HEAD")  # noqa: S310  the scheme was checked
    try:
        urllib.request.urlopen(request, timeout=seconds).close()  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code >= 500:
            return Check("model hub", WARN, f"{endpoint} answers {error.code}", cost)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        return Check("model hub", WARN, f"{endpoint} does not answer ({reason})", cost)
    return Check("model hub", OK, f"{endpoint} answers")


def processor_check(cpuinfo: str, cores: int, threads: str | None) -> Check:
    """Report cores, threads and the instructions that int8 is fast with."""
    flags = set(re.findall(r"\w+", cpuinfo.split("flags", 1)[-1].split("\n", 1)[0])) if "flags" in cpuinfo else set()
    vnni = "AVX-512 VNNI" if "avx512_vnni" in flags else "AVX VNNI" if "avx_vnni" in flags else "no VNNI"
    found = f"{cores} cores, OMP_NUM_THREADS {threads or 'not set'}, {vnni}"
    if threads is not None and (not threads.isdigit() or int(threads) > cores):
        return Check("processor", WARN, found, f"set OMP_NUM_THREADS to at most {cores}: more threads than cores stall")
    if vnni == "no VNNI":
        return Check("processor", OK, found, "int8 columns run, but gain less than on a processor with VNNI")
    return Check("processor", OK, found)


def disk_check(free: float, folder: Path) -> Check:
    """Check the space left for the cache; `free` in bytes."""
    found = f"{free / 1e9:.1f} GB free at {folder}"
    if free >= LOW_DISK:
        return Check("disk", OK, found)
    return Check("disk", FAIL if free < NO_DISK else WARN, found, "free some, or set RANKER_CACHE to another place")


def examine() -> list[Check]:
    """Run every check."""
    cache = cache_dir()
    place = next(path for path in (cache, *cache.parents) if path.exists())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cpuinfo = Path("/proc/cpuinfo")
    checkpoints = PROJECT / "checkpoints"
    checks = [python_check()]
    try:
        checks += package_checks(requirements())
    except (metadata.PackageNotFoundError, InvalidRequirement, KeyError, tomllib.TOMLDecodeError) as error:
        checks.append(Check("packages", FAIL, f"requirements cannot be read ({error})", "reinstall the project"))
    taxonomy_line, taxonomy = taxonomy_check(cache_file("auto"))
    checks += [taxonomy_line, cache_check(cache / "arrays")]
    checks += [*config_checks(CONFIG_DIR, checkpoints, taxonomy), *checkpoint_checks(checkpoints)]
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    checks += [
        hub_check(os.environ.get("HF_ENDPOINT", "https://huggingface.co"), offline=offline),
        processor_check(
            cpuinfo.read_text(errors="replace") if cpuinfo.is_file() else "", cores, os.environ.get("OMP_NUM_THREADS")
        ),
        disk_check(shutil.disk_usage(place).free, place),
    ]
    return checks


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; exit code 3 where a check failed."""
    arguments = parser(
        "ranker.doctor",
        "Check what is installed, cached and reachable, and say what each missing piece costs.",
        "python -m ranker.doctor",
    )
    arguments.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    given = arguments.parse_args(argv)
    checks = examine()
    failed = sum(check.status == FAIL for check in checks)
    if given.json:
        emit({"ok": not failed, "checks": [check._asdict() for check in checks]})
        return PrerequisiteError.exit_code if failed else 0
    rows = [(check.status, check.name, shorten(check.found, 110, placeholder=" ...")) for check in checks]
    say(table(rows, ("", "check", "found")))
    for check in checks:
        if check.advice:
            say(f"{check.status:4}  {check.name}: {check.advice}")
    say(f"{failed} failed" if failed else "nothing failed")
    return PrerequisiteError.exit_code if failed else 0


if __name__ == "__main__":
    raise SystemExit(run(main))
