"""The check of locked dependencies finds a vulnerable version, a licence we may not ship with, and an old list."""

from __future__ import annotations

import datetime
import importlib.util
from email.message import Message
from pathlib import Path

import pytest
from packaging.version import Version

CHECK = Path(__file__).parents[1] / ".ci/dependencies.py"


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("dependencies", CHECK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Package:
    version = "1.0"

    def __init__(self, name: str, licence: str) -> None:
        self.metadata = Message()
        self.metadata["Name"], self.metadata["License-Expression"] = name, licence


def test_an_affected_version_is_named_with_its_advisory(check):
    versions = check.locked(
        "h11==0.14.0 \\\n    --hash=sha256:0\nuvicorn[standard]==0.30.0 ; extra\nStarlette==0.49.1\n"
    )
    assert versions == {"h11": [Version("0.14.0")], "uvicorn": [Version("0.30.0")], "starlette": [Version("0.49.1")]}
    advisories = [
        {"package": "H11", "affected": "<0.16", "id": "CVE-2025-43859"},
        {"package": "starlette", "affected": ">=0.39.0,<0.49.1", "id": "CVE-2025-62727"},
    ]
    (line,) = check.vulnerable(versions, advisories)
    assert "h11 0.14.0" in line.lower() and "CVE-2025-43859" in line


def test_copyleft_and_missing_licences_are_named(check):
    packages = [
        _Package("good", "MIT"),
        _Package("bad", "GPL-3.0-only"),
        _Package("none", ""),
        _Package("both", "MIT AND GPL-2.0-only"),
        _Package("choice", "GPL-2.0-only OR MIT"),
        _Package("bound", "MIT AND (GPL-2.0-only OR AGPL-3.0-only)"),
    ]
    lines = list(check.unlicensed(packages, [package.metadata["Name"] for package in packages]))
    assert [line.split()[0] for line in lines] == ["bad", "none", "both", "bound"]


def test_what_is_not_installed_as_locked_and_what_nobody_looked_up_is_named(check):
    lock = (
        "same==1.0 \\\n    --hash=sha256:0\nolder[extra]==2.0 ; sys_platform != 'none' \\\nabsent==1\n"
        "elsewhere==1.0 ; sys_platform == 'none' \\\n"
    )
    lines = list(check.missing(lock, {"same": "1.0", "older": "1.9"}))
    assert [line.split()[0] for line in lines] == ["older", "absent"]
    (line,) = check.unreviewed(["same", "new"], ["Same"])
    assert line.startswith("new is locked")


@pytest.fixture
def judged(check, tmp_path, monkeypatch, capsys):
    """Runs the check with a list of advisories; gives its exit code and what it prints."""

    def run(text: str, *options: str) -> tuple[int, str]:
        listed = tmp_path / "advisories.toml"
        listed.write_text(text)
        monkeypatch.setattr(check, "ADVISORIES", listed)
        monkeypatch.setattr("sys.argv", ["dependencies.py", *options])
        return check.main(), capsys.readouterr().out

    return run


def test_a_release_waits_for_packages_that_nobody_looked_up_and_anything_else_is_warned(check, judged):
    names = sorted(check.locked(check.LOCK.read_text()))
    text = f"reviewed = {datetime.date.today()}\npackages = {names[1:]}\npending = {names[:1]}\nadvisory = []\n"
    code, said = judged(text)
    assert code == 0 and "advisories of 1 locked packages" in said
    code, said = judged(text, "--release")
    assert code == 1 and f"{names[0]} is locked" in said


def test_a_list_of_tomorrow_is_refused(judged):
    ahead = datetime.date.today() + datetime.timedelta(days=2)
    code, said = judged(f"reviewed = {ahead}\npackages = []\nadvisory = []\n")
    assert code == 1 and "in the future" in said


def test_a_release_with_an_old_list_fails_and_anything_else_is_warned(check, judged):
    reviewed = datetime.date.today() - datetime.timedelta(days=31)
    names = sorted(check.locked(check.LOCK.read_text()))
    text = f'reviewed = {reviewed}\npackages = {names}\n[[advisory]]\npackage = "h11"\naffected = "<0.1"\nid = "x"\n'
    code, said = judged(text)
    assert code == 0 and "warning" in said
    code, said = judged(text, "--release")
    assert code == 1 and "31 days ago" in said
