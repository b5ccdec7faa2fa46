"""Codes of a text column are into the names that its rows have."""

from __future__ import annotations

import pyarrow as pa

from traceviz_dag.analyze.kernel_intervals import codes


def test_rows_cut_out_of_more_have_their_own_names_alone():
    words = ["gpu:1", None, "gpu:0", "gpu:2", "gpu:0"]
    whole = pa.table({"device": pa.array(words, pa.string()).dictionary_encode()})
    code, names = codes(whole.slice(1, 2), "device")
    assert (code.tolist(), names) == ([-1, 0], ["gpu:0"])
    code, names = codes(whole, "device")
    assert (code.tolist(), names) == ([1, -1, 0, 2, 0], ["gpu:0", "gpu:1", "gpu:2"])
