"""TOML files of users: whatever is wrong with one is a line that names the file."""

from __future__ import annotations

import pytest

from assets.resources import TracevizHome
from traceviz_dag.capture.configuration import read_configuration
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.errors import BadInputError
from traceviz_dag.pipeline.home_settings import load_settings
from traceviz_dag.read.pairs_file import read_pairs_file, read_stamps

READERS = {
    "pairs": read_pairs_file,
    "rules": load_rules,
    "settings": lambda path: load_settings(path.parent, {"TRACEVIZ_SETTINGS": str(path)}),
    "capture": read_configuration,
}
NO_TOML = {
    "long number": b"a = " + b"9" * 5000,
    "deep": b"a = " + b"[" * 5000 + b"]" * 5000,
    "not UTF-8": b'a = "\xff"',
    "a surrogate": b'a = "\\ud800"',
    "NUL": b"a = \x00",
    "a key twice": b"a = 1\na = 2",
    "no date": b"a = 2026-99-99",
    "a key of 500,000 parts, which the parser would take half an hour for": b"a." * 500_000 + b"a = 1",
    "too large": b"#" * (1 << 21),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("fault", NO_TOML)
def test_what_is_no_toml_is_one_line(tmp_path, reader, fault):
    path = tmp_path / "given.toml"
    path.write_bytes(NO_TOML[fault])
    with pytest.raises(BadInputError) as caught:
        READERS[reader](path)
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        ("pairs", '[[pair]]\nname = "a"\nstages = [false, true]'),
        ("pairs", '[[pair]]\nname = "a"\ndimension = "dp"\nthreshold = nan'),
        ("pairs", '[[pair]]\nname = "a"\ndimension = ["dp"]'),
        ("pairs", '[[pair]]\nname = "a"\nstage0 = {stamp = "A"}\nstage1 = {stamp = "B"}\ntimestamps = 5'),
        ("pairs", '[[pair]]\nname = "a"\ndimension = "dp"\nwarmup = 1' + "0" * 400),
        ("rules", '[[frame]]\nname = "a"\npatterns = [1]'),
        ("rules", 'frame = "a"'),
        ("rules", '[[kernel]]\nname = "a"\npatterns = ["b"]\namong = 5'),
        ("settings", "[sensor]\ninterval_seconds = true"),
        ("settings", "[sensor]\nrest_hours = nan"),
        ("settings", "[sensor]\ninterval_seconds = -1"),
        ("settings", '[nightly]\ntime_zone = "../../etc/passwd"'),
        ("settings", "[nightly.tolerances]\nstep = nan"),
    ],
)
def test_values_of_the_wrong_kind_are_one_line(tmp_path, reader, text):
    path = tmp_path / "given.toml"
    path.write_text(text)
    with pytest.raises(BadInputError) as caught:
        READERS[reader](path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("value", ["1e999999999", "9" * 400, "true", '"7"', "null", "[" * 3000 + "]" * 3000])
def test_stamps_that_no_column_holds_name_their_line(tmp_path, value):
    path = tmp_path / "stamps.jsonl"
    path.write_text(
        '{"rank": 0, "unit": 1, "tA0": 1, "tA1": 2}\n' + f'{{"rank": 0, "unit": 2, "tA0": {value}, "tA1": 9}}'
    )
    with pytest.raises(BadInputError, match="line 2"):
        list(read_stamps(path, "A", 1000))


def test_a_time_that_does_not_come_back_is_one_line(tmp_path, monkeypatch):
    path = tmp_path / "given.toml"
    path.write_text('[nightly]\ncron = "whenever"')
    monkeypatch.setenv("TRACEVIZ_SETTINGS", str(path))
    with pytest.raises(BadInputError, match="no time that comes back") as caught:
        TracevizHome(home=str(tmp_path)).settings()
    assert str(caught.value).startswith(str(path))
