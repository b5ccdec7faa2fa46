"""Checks the locked dependencies: licences that we may ship with, and no version with a published vulnerability.

What is installed must be what is locked, and the advisories of every locked package must have been gone through.

    python .ci/dependencies.py [--release]

A release also needs a list of vulnerabilities that was gone through within the last 30 days.
"""

from __future__ import annotations

import datetime
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.markers import Marker
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

HERE = Path(__file__).parent
LOCK = HERE.parent / "requirements.lock"
ADVISORIES = HERE / "advisories.toml"
MOST_DAYS = 30

PERMITTED = re.compile(
    r"\b(mit|mit-cmu|bsd|0bsd|apache|isc|psf|python software foundation|mpl|mozilla public license|zlib|cc0|kiwi lice)",
    re.IGNORECASE,
)
REFUSED = re.compile(r"gpl|sspl|busl|affero|commons clause|proprietary|non-?commercial", re.IGNORECASE)
EXCEPTIONS = {
    "psycopg2-binary": "LGPL with exceptions; optional extra, linked dynamically and not shipped by us",
    "antlr4-python3-runtime": "BSD, which its metadata states in one word",
}
"""Packages whose licence a person has judged, with the verdict."""


def locked(text: str) -> dict[str, list[Version]]:
    """Package → its versions in a lock file; some have one a platform."""
    found: dict[str, list[Version]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", text, re.MULTILINE):
        found.setdefault(canonicalize_name(name), []).append(Version(version))
    return found


def missing(text: str, versions: Mapping[str, str]) -> Iterator[str]:
    """A line for each locked version that is for this system and interpreter, and not what is installed.

    Args:
        text: of the lock file. versions: package → what is installed.
    """
    for name, version, marker in re.findall(
        r"^([\w.-]+)(?:\[[^\]]*\])?==([^\s;\\]+)(?: *;([^\\\n]*))?", text, re.MULTILINE
    ):
        if not marker.strip() or Marker(marker.strip()).evaluate():
            there = versions.get(canonicalize_name(name))
            if there is None or Version(there) != Version(version):
                yield f"{name} {version} is locked and {there or 'nothing'} is installed: run make setup"


def unreviewed(names: Iterable[str], reviewed: Iterable[str]) -> Iterator[str]:
    """A line for each locked package whose advisories nobody has gone through."""
    known = {canonicalize_name(each) for each in reviewed}
    for name in sorted(set(names) - known):
        yield f"{name} is locked, and its advisories were not gone through: do so, and add it to {ADVISORIES.name}"


def vulnerable(versions: Mapping[str, Sequence[Version]], advisories: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """A line for each locked version that an advisory affects."""
    for advisory in advisories:
        affected = SpecifierSet(advisory["affected"], prereleases=True)
        for version in versions.get(canonicalize_name(advisory["package"]), ()):
            if version in affected:
                yield f"{advisory['package']} {version} is affected by {advisory['id']}: update the lock"


def licence(distribution: Distribution) -> str:
    """What a package says of its licence: the expression, the classifiers and the first line of the free text."""
    metadata = distribution.metadata
    classifiers = [
        each.rpartition(" :: ")[2] for each in metadata.get_all("Classifier", []) if each.startswith("License")
    ]
    free = (metadata.get("License") or "").strip().partition("\n")[0]
    return "; ".join(each for each in (metadata.get("License-Expression") or "", *classifiers, free) if each)


def unlicensed(installed: Sequence[Distribution], names: Sequence[str]) -> Iterator[str]:
    """A line for each installed package of the lock whose licence is not permitted."""
    for distribution in installed:
        name = canonicalize_name(distribution.metadata["Name"])
        said = licence(distribution)
        # One may be chosen of several; where some hold together and of others one is chosen, a person judges.
        choices = [said] if " AND " in said else said.split(" OR ")
        permitted = any(PERMITTED.search(each) and not REFUSED.search(each) for each in choices)
        if name in names and name not in EXCEPTIONS and not permitted:
            yield f"{name} {distribution.version}: licence {said or 'none'}; judge it in {HERE.name}/dependencies.py"


def main() -> int:
    """Print every fault; returns the exit code."""
    lock = LOCK.read_text(encoding="utf-8")
    versions = locked(lock)
    known = tomllib.loads(ADVISORIES.read_text(encoding="utf-8"))
    age = (datetime.date.today() - known["reviewed"]).days
    installed = list(distributions())
    there = {canonicalize_name(each.metadata["Name"]): each.version for each in installed}
    faults = [
        *vulnerable(versions, known["advisory"]),
        *unlicensed(installed, list(versions)),
        *missing(lock, there),
        *unreviewed(versions, [*known["packages"], *known.get("pending", ())]),
    ]
    waiting = list(unreviewed(set(versions) & set(known.get("pending", ())), ()))
    if "--release" in sys.argv[1:]:
        faults += waiting
    elif waiting:
        print(f"warning: the advisories of {len(waiting)} locked packages were not gone through; a release needs that")
    old = f"{ADVISORIES.name} was gone through {age} days ago; a release needs it younger than {MOST_DAYS} days"
    if age > MOST_DAYS and "--release" in sys.argv[1:]:
        faults.append(old)
    elif age > MOST_DAYS:
        print(f"warning: {old}")
    if age < 0:
        faults.append(f"{ADVISORIES.name} was gone through in the future, on {known['reviewed']}: correct the date")
    absent = sorted(set(versions) - set(there))
    licences = f"licences of {len(versions) - len(absent)} permitted"
    if absent:
        licences += f", of {', '.join(absent)} not seen, which are for other systems or interpreters"
    print(
        "\n".join(faults)
        or f"{len(versions)} locked packages: in none of {len(known['advisory'])} advisories; {licences}"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
