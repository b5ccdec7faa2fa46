"""Marks of iterations that are being analysed: what readers learn of one that was cut off."""

import threading
from contextlib import suppress

from traceviz_dag.lake.inputs import FOLDER
from traceviz_dag.lake.under_way import under_way, was_left_half_renewed

_KEY = "job@7"


class CutOffError(Exception):
    """Stands for whatever ends an analysis early."""


def _cut_off(home):
    with suppress(CutOffError), under_way(home, _KEY):
        raise CutOffError


def test_an_analysis_that_is_cut_off_is_known_until_one_comes_to_its_end(tmp_path):
    with under_way(tmp_path, _KEY):
        assert not was_left_half_renewed(tmp_path, _KEY)
    assert not was_left_half_renewed(tmp_path, _KEY)
    _cut_off(tmp_path)
    assert was_left_half_renewed(tmp_path, _KEY)
    assert not was_left_half_renewed(tmp_path, "job@70")
    with under_way(tmp_path, _KEY):
        pass
    assert not was_left_half_renewed(tmp_path, _KEY)
    assert not list((tmp_path / FOLDER).iterdir())


def test_one_that_is_cut_off_beside_another_is_known_after_the_other_ended(tmp_path):
    with under_way(tmp_path, _KEY):
        _cut_off(tmp_path)
    assert was_left_half_renewed(tmp_path, _KEY)


def test_readers_neither_see_a_cut_in_what_goes_on_nor_keep_its_mark(tmp_path):
    seen, done = [], threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(was_left_half_renewed(tmp_path, _KEY))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(300):
        with under_way(tmp_path, _KEY):
            pass
    done.set()
    for reader in readers:
        reader.join()
    assert seen and not any(seen)
    assert not list((tmp_path / FOLDER).iterdir())
