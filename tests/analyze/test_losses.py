"""What one profile loses its time to, against SQL on the export itself."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from tests.damage import call
from tests.nsys_file import Export

MS = 1_000_000


def _profile(path: Path) -> Path:
    """100 ms: copies from pageable memory for 40 ms, of which a product in FP32 runs beside the last 5; 20 ms idle."""
    export = Export()
    export.copy(0, 40 * MS, srcKind=0, dstKind=2)
    export.kernel(35 * MS, 60 * MS, "ampere_sgemm_128x64_tn")
    export.kernel(80 * MS, 100 * MS, "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128")
    path.parent.mkdir()
    return export.write(path)


def _findings(path: Path, home: Path, code: int = 0) -> dict[str, dict]:
    answer = call("findings", path, "--home", home, "--json")
    assert answer.code == code, answer.err
    return {row["rule"]: row for row in reversed(answer.json) if row["value"] is not None}


def test_copies_idle_time_and_products_without_tensor_cores_are_found_and_the_largest_loss_is_named_first(tmp_path):
    path = _profile(tmp_path / "d/one.sqlite")
    answer = call("findings", path, "--home", tmp_path / "home")
    first = answer.out.strip().splitlines()[1]
    assert first.strip() == (
        "largest losses, of the time measured: copies 35 % (Memcpy HtoD (Pageable -> Device)), idle 20 %"
    )
    numbered = [
        line.split(":")[0].strip() for line in answer.out.splitlines() if line.strip()[:2] in ("1.", "2.", "3.")
    ]
    assert numbered == ["1. loss · copies", "2. loss · idle"]
    rows = _findings(path, tmp_path / "home")
    assert "takes 35.0 ms per rank with no kernel beside it, 35 % of" in rows["copies"]["statement"]
    assert rows["copies"]["detail"].startswith("40.0 ms in all, ")
    assert "pinned memory" in rows["copies"]["remedy"]
    assert "20.0 ms per rank, 20 %" in rows["idle"]["statement"]
    parts = rows["idle"]["detail"].partition(" without computation: ")
    times = [[float(number) for number in re.findall(r"([0-9.]+) ms", part)] for part in (parts[0], parts[2])]
    assert times[0][-1] == 55.0 == sum(times[1]), "what is without computation is told in parts that add up to it"
    assert "25.0 ms of 45.0 ms per rank" in rows["tensor_cores"]["statement"]
    assert rows["copies"]["at_most_ns"] == 35 * MS and rows["idle"]["at_most_ns"] == 20 * MS


@pytest.mark.long
def test_losses_of_real_profiles_agree_with_sql_on_the_exports(shared_data, tmp_path):
    path = shared_data / "nsys/h100_2gpu_1s.sqlite"
    rows = _findings(path, tmp_path / "home")
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as export:
        ((copied, gpus),) = export.execute(
            "SELECT sum(end - start), count(DISTINCT deviceId) "
            "FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE copyKind = 1 AND srcKind = 1 AND dstKind = 2"
        )
        ((products,),) = export.execute(
            "SELECT sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName "
            "WHERE value LIKE '%ffma%'"
        )
    assert rows["copies"]["culprit"]["operation"] == "Memcpy HtoD (Pinned -> Device)"
    assert rows["copies"]["value"] == max(row["value"] for row in rows.values() if row["rule"] != "tensor_cores") > 0.94
    assert f"{copied / gpus / 1e6:#.3g}".rstrip(".") + " ms in all" in rows["copies"]["detail"]
    assert f": {products / gpus / 1e6:#.3g} ms of" in rows["tensor_cores"]["statement"]
    # Nothing shows who takes part in its communications: the exit code says so.
    path = shared_data / "nsys/mfu_2gpu_before.sqlite"
    rows = _findings(path, tmp_path / "home", code=2)
    idle = []
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as export:
        for device in (0, 1):
            spans = export.execute(
                "SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE deviceId = :gpu "
                "UNION ALL SELECT start, end FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE deviceId = :gpu "
                "UNION ALL SELECT start, end FROM CUPTI_ACTIVITY_KIND_MEMSET WHERE deviceId = :gpu ORDER BY start",
                {"gpu": device},
            ).fetchall()
            reached, total = spans[0][0], 0
            for start, end in spans:
                total += max(0, start - reached)
                reached = max(reached, end)
            idle.append(total)
    assert f"for {sum(idle) / 2 / 1e6:#.3g} ms per rank, 9.6 %" in rows["idle"]["statement"]
    assert rows["idle"]["value"] > rows["exposed_communication"]["value"]
