"""Dockerfile and compose file: linted, and true to the code; no container engine is needed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ranker.service.settings import read_settings

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def compose():
    return yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))


def test_hadolint_finds_nothing():
    tool = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if tool is None:
        pytest.skip("hadolint is not installed")
    found = subprocess.run([tool, str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


def test_compose_file_follows_the_specification():
    compose_spec = pytest.importorskip("compose_spec", reason="needs compose-spec (extra dev)")
    parsed = compose_spec.ComposeSpecification.model_validate(compose())
    assert set(parsed.services) == {"ranker"}


def test_the_image_runs_the_service_as_nobody_special():
    last = DOCKERFILE.split("FROM")[-1]
    assert re.findall(r"^USER (\S+)$", last, re.M) == ["10001"]
    assert re.findall(r"^ENTRYPOINT (.+)$", last, re.M) == ['["python", "-m", "ranker.serve"]']
    assert "HEALTHCHECK" in last
    assert "/health/live" in last


def test_settings_of_image_and_compose_file_are_settings():
    of_image = dict(re.findall(r"\b(RANKER_\w+)=(\S+)", DOCKERFILE.split("FROM")[-1]))
    given = {**of_image, **compose()["services"]["ranker"]["environment"]}
    given = {name: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value) for name, value in given.items()}
    settings = read_settings({}, given)
    assert (settings.host, settings.port, settings.config, settings.drain) == ("0.0.0.0", 8000, "embedded", 5.0)
    unknown = {name for name in given if name.removeprefix("RANKER_").lower() not in settings.__dataclass_fields__}
    assert unknown == {"RANKER_CACHE"}


def test_compose_leaves_time_for_the_end():
    service = compose()["services"]["ranker"]
    environment = service["environment"]
    needed = float(environment["RANKER_DRAIN"]) + float(environment["RANKER_GRACE"])
    assert float(service["stop_grace_period"].removesuffix("s")) > needed
    assert service["read_only"] is True
    assert service["ports"] == ["127.0.0.1:8000:8000"]


def test_the_builder_gets_what_the_distribution_is_made_of():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    packages = re.search(r"include = \[(.*)\]", (ROOT / "pyproject.toml").read_text()).group(1)
    assert {name.strip(' "*') for name in packages.split(",")} <= kept
    assert all((ROOT / name).exists() for name in kept)
