"""Codes of a text column are into the names that its rows have, and integers are exact beside NULLs."""

from __future__ import annotations

import pyarrow as pa

from traceviz_dag.analyze.kernel_intervals import codes, holds, numbers


def test_rows_cut_out_of_more_have_their_own_names_alone():
    words = ["gpu:1", None, "gpu:0", "gpu:2", "gpu:0"]
    whole = pa.table({"device": pa.array(words, pa.string()).dictionary_encode()})
    code, names = codes(whole.slice(1, 2), "device")
    assert (code.tolist(), names) == ([-1, 0], ["gpu:0"])
    code, names = codes(whole, "device")
    assert (code.tolist(), names) == ([1, -1, 0, 2, 0], ["gpu:0", "gpu:1", "gpu:2"])


def test_the_rows_of_a_word_are_those_that_have_it():
    words = ["gpu:1", None, "gpu:0", "gpu:1"]
    plain = pa.table({"device": pa.array(words, pa.string())})
    parts = pa.concat_tables([plain.slice(0, 2), plain.slice(2)])
    for table in (plain, parts, pa.table({"device": plain["device"].dictionary_encode()})):
        assert holds(table, "device", "gpu:1").tolist() == [True, False, False, True]
        assert holds(table, "device", "gpu:7").tolist() == [False] * 4


def test_integers_beside_nulls_are_exact_in_rows_cut_out_of_more():
    large = 2**62 + 1
    whole = pa.array([7, None, large, None, -large], pa.int64())
    for values in (whole.slice(1, 3), pa.chunked_array([whole.slice(1, 1), whole.slice(2, 2)])):
        assert numbers(values, -5).tolist() == [-5, large, -5]
    assert numbers(whole.slice(2, 1)).tolist() == [large]
    assert numbers(pa.nulls(2, pa.int32()), -large).tolist() == [-large] * 2
