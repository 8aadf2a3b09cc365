"""The doctor: each check on a sound and on a broken world."""

from __future__ import annotations

import hashlib
import json
import socket
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from ranker import doctor
from ranker.core.cli import run
from ranker.core.errors import PrerequisiteError
from ranker.core.taxonomy import Skill, Taxonomy

CONFIG = "name: {name}\nlanes:\n  - {{name: a, family: bm25}}\npool: {{weights: {{a: 1.0}}}}\n"


def versions(found):
    def version_of(name):
        if name not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name]

    return version_of


def test_python():
    assert doctor.python_check((3, 11, 4)).status == "ok"
    assert doctor.python_check((3, 10, 9)).status == "fail"


def test_packages_missing_old_and_sound():
    wanted = {
        "": [Requirement("numpy>=1.26"), Requirement("tomli; python_version < '3'")],
        "llm": [Requirement("httpx>=0.27")],
    }
    sound = list(doctor.package_checks(wanted, versions({"numpy": "2.1", "httpx": "0.28"})))
    assert [check.status for check in sound] == ["ok", "ok"]
    old = list(doctor.package_checks(wanted, versions({"numpy": "1.20", "httpx": "0.28"})))
    assert old[0].status == "warn"
    assert "numpy 1.20 (tried: >=1.26)" in old[0].found
    bare = list(doctor.package_checks(wanted, versions({})))
    assert [check.status for check in bare] == ["fail", "warn"]
    assert "'.[llm]'" in bare[1].advice
    assert doctor.COST["llm"] in bare[1].advice


def test_what_the_project_asks_for_is_read():
    wanted = doctor.requirements()
    assert "numpy" in {requirement.name for requirement in wanted[""]}
    assert set(doctor.COST) <= set(wanted), "a cost is stated for an extra that there is not"


def test_configs(tmp_path):
    (tmp_path / "good.yaml").write_text(CONFIG.format(name="good"))
    (tmp_path / "typo.yaml").write_text("nmae: typo\n")
    for name in ("bagless", "embedded"):
        (tmp_path / f"{name}.yaml").write_text(CONFIG.format(name=name) + "fusion: {checkpoint: none-there}\n")
    found = {check.name: check for check in doctor.config_checks(tmp_path, tmp_path / "checkpoints", None)}
    assert found["config: good"].status == "ok"
    assert found["config: typo"].status == "fail"
    assert "nmae" in found["config: typo"].found
    assert found["config: bagless"].status == "warn"
    assert found["config: embedded"].status == "fail"
    assert "train.fusion" in found["config: bagless"].advice
    assert [check.status for check in doctor.config_checks(tmp_path / "none", tmp_path, None)] == ["fail"]


def test_a_bag_of_another_taxonomy_fails(tmp_path):
    (tmp_path / "c.yaml").write_text(CONFIG.format(name="c") + "fusion: {checkpoint: bag}\n")
    bag = tmp_path / "checkpoints" / "bag"
    bag.mkdir(parents=True)
    (bag / "manifest.json").write_text(json.dumps({"format": 1, "taxonomy": "0" * 16}))
    taxonomy = Taxonomy.from_skills([Skill("u", "weld")])
    (check,) = doctor.config_checks(tmp_path, tmp_path / "checkpoints", taxonomy)
    assert check.status == "fail"


def test_taxonomy(tmp_path):
    file = tmp_path / "t.json.gz"
    assert doctor.taxonomy_check(file)[0].status == "warn"
    taxonomy = Taxonomy.from_skills([Skill("u", "weld")], version="9")
    taxonomy.save(file)
    check, loaded = doctor.taxonomy_check(file)
    assert (check.status, loaded) == ("ok", taxonomy)
    assert taxonomy.fingerprint in check.found
    file.write_bytes(b"rubbish")
    check, loaded = doctor.taxonomy_check(file)
    assert (check.status, loaded) == ("warn", None)


def test_checkpoints_are_compared_with_their_manifests(tmp_path):
    for name in ("sound", "changed", "missing", "bare"):
        (tmp_path / name).mkdir()
    listed = {"w.bin": hashlib.sha256(b"weights").hexdigest()}
    for name in ("sound", "changed", "missing"):
        (tmp_path / name / "manifest.json").write_text(json.dumps({"files": listed}))
    (tmp_path / "sound" / "w.bin").write_bytes(b"weights")
    (tmp_path / "changed" / "w.bin").write_bytes(b"other")
    (tmp_path / "arrays").mkdir()  # what is shipped to save computing is no checkpoint
    found = {check.name.split()[-1]: check for check in doctor.checkpoint_checks(tmp_path)}
    assert {name: check.status for name, check in found.items()} == {
        "sound": "ok",
        "changed": "fail",
        "missing": "fail",
        "bare": "fail",
    }
    assert "w.bin has changed" in found["changed"].found
    assert "w.bin is missing" in found["missing"].found


def test_what_lanes_read_is_checked_by_the_hash_beside_it(tmp_path):
    (tmp_path / "bag" / "memory").mkdir(parents=True)
    (tmp_path / "bag" / "manifest.json").write_text("{}", encoding="utf-8")
    file, about = (tmp_path / "bag" / "memory" / f"memory.{end}" for end in ("npz", "json"))
    file.write_bytes(b"labels")
    about.write_text(json.dumps({"sha256": hashlib.sha256(b"labels").hexdigest()}), encoding="utf-8")

    def state() -> str:
        (check,) = doctor.checkpoint_checks(tmp_path)
        return f"{check.status} {check.found}"

    assert state() == "ok manifest readable, 1 files listed and there, 1 by hash"
    file.write_bytes(b"label")
    assert state() == "fail memory/memory.npz has changed"
    file.unlink()
    assert state() == "fail memory/memory.npz is missing"
    file.write_bytes(b"labels")
    about.write_text("{", encoding="utf-8")
    assert state() == "fail memory/memory.npz has changed"


def test_cached_arrays(tmp_path):
    assert doctor.cache_check(tmp_path / "none").status == "warn"
    (tmp_path / "a.npy").write_bytes(b"0" * 2_000_000)
    check = doctor.cache_check(tmp_path)
    assert check.status == "ok"
    assert "1 files, 2 MB" in check.found


def test_a_hub_that_does_not_answer_is_a_warning():
    with socket.socket() as held:  # bound but not listening: refused at once
        held.bind(("127.0.0.1", 0))
        check = doctor.hub_check(f"http://127.0.0.1:{held.getsockname()[1]}", offline=False, seconds=1)
    assert check.status == "warn"
    assert doctor.hub_check("file:///etc", offline=False).status == "warn"
    assert doctor.hub_check("https://x", offline=True).status == "warn"


def test_processor():
    assert "AVX-512 VNNI" in doctor.processor_check("x\nflags\t: fpu avx512_vnni\n", 2, None).found
    assert "no VNNI" in doctor.processor_check("", 2, "1").found
    assert doctor.processor_check("", 2, "8").status == "warn"
    assert doctor.processor_check("", 2, "many").status == "warn"


@pytest.mark.parametrize(("free", "status"), [(5e9, "ok"), (1e9, "warn"), (1e7, "fail")])
def test_disk(tmp_path, free, status):
    assert doctor.disk_check(free, tmp_path).status == status


@pytest.mark.parametrize("status", ["ok", "warn", "fail"])
def test_exit_code(monkeypatch, capsys, status):
    monkeypatch.setattr(doctor, "examine", lambda: [doctor.Check("thing", status, "seen", "do this")])
    code = PrerequisiteError.exit_code if status == "fail" else 0
    assert run(doctor.main, []) == code
    assert "thing: do this" in capsys.readouterr().out
    assert run(doctor.main, ["--json"]) == code
    assert json.loads(capsys.readouterr().out)["ok"] is (status != "fail")
