"""Secrets are planted wherever a profile can hold text; none is in anything that is written or printed."""

from __future__ import annotations

import gzip
from pathlib import Path

import duckdb

from tests.end_to_end.conftest import traceviz
from tests.nsys_file import small_export
from tests.small_run import SCHEDULES, rank_file

TOKEN = "hf_PLANTEDabcdefgh0123"
KEY = "PLANTEDkeyvalue987"
HOME = "/home/plantedalice"
PLANTED = ("PLANTED", "plantedalice", "planted-host", "planteduser")


def _texts(place: str) -> list[str]:
    return [
        *(f"{place} {TOKEN}", f"{place} WANDB_API_KEY={KEY}", f"https://planteduser:{KEY}@git.example/{place}"),
        *(f"sshpass -p {KEY} ssh {place}", f"machine {place} login planteduser password {KEY} Cookie: {place}={KEY}"),
    ]


def _run(folder: Path) -> Path:
    """Two ranks with secrets in names, annotations, stacks, groups, devices, threads and the header."""
    for rank in range(2):
        file = rank_file(rank, 2)
        at = 3_000
        for text in _texts("name"):
            file.python(f"{HOME}/job/train.py(1): {text}", at, at + 10)
            file.python(f"{HOME}/Megatron-LM/{SCHEDULES}(3): {text}", at + 1, at + 9)
            file.operator(text, at + 2, at + 8, **{"Input Dims": [[TOKEN]]})
            file.annotation(text, at + 3, at + 7)
            file.kernel(f"{text}_kernel", at + 100, at + 110, launched=at + 4, stream=7, note=TOKEN)
            file.thread_name(400 + at % 97, text)
            at += 20
        file.events.append({"ph": "M", "name": "process_labels", "pid": 1, "args": {"labels": TOKEN}})
        file.events.append({"ph": "i", "name": TOKEN, "pid": 1, "tid": 1, "ts": 1, "s": "t", "args": {"x": KEY}})
        file.header |= {
            "hostname": "planted-host", "username": "planteduser", "environment": {"HF_TOKEN": TOKEN},
            "traceName": f"{HOME}/{TOKEN}", "deviceProperties": [{"id": 0, "name": f"H100 {TOKEN}"}],
            "command": f"python --token={KEY}",
            "traceviz_capture": {"settings": {"HF_TOKEN": TOKEN, "NCCL_ALGO": TOKEN, "user": "planteduser"}},
        }  # fmt: skip
        file.header["distributedInfo"]["pg_config"][1]["pg_desc"] = f"GROUP {TOKEN}"
        file.write(folder / f"iteration_7/rank_{rank:04d}_iter_7.pt.trace.json")
    return folder


def _export(path: Path) -> Path:
    export = small_export()
    export.secrets()
    for at, text in enumerate(_texts("range")):
        export.range(at * 1000, at * 1000 + 500, text)
        export.range(at * 1000 + 100, at * 1000 + 400, None, registered=f"{HOME}/{text}")
        export.range(0, 1, text, kind=75, domain=7)
    return export.write(path)


def _written(home: Path) -> str:
    """Every byte below the home as text, what is compressed taken apart."""
    parts = []
    for path in sorted(home.rglob("*")):
        if not path.is_file():
            continue
        parts.append(str(path.relative_to(home)))
        data = path.read_bytes()
        parts.append(data.decode("latin-1"))
        if data.startswith(b"\x1f\x8b"):
            parts.append(gzip.decompress(data).decode("latin-1"))
        if path.suffix == ".parquet":
            parts.append(str(duckdb.sql(f"SELECT * FROM read_parquet('{path}')").fetchall()))
    return "\n".join(parts)


def test_no_planted_secret_leaves_a_profile(tmp_path, capfd):
    home, out = tmp_path / "home", tmp_path / "out"
    out.mkdir()
    run, export = _run(tmp_path / "job"), _export(tmp_path / "job.sqlite")
    kernels = "SELECT * FROM kernels"
    shown = ""
    for arguments in (
        ("doctor", run),
        ("analyze", run, "--home", home, "--workers", "1"),
        ("sql", kernels, "--home", home, "--json"),
        ("topology", run),
        ("classify", "--input", run / "iteration_7/rank_0000_iter_7.pt.trace.json"),
        ("figures", "--home", home, "--formats", "svg", "--ranks", "0", "-p", "1"),
        ("perfetto", "export", "--home", home, "--run", "job", "-o", out / "job.pftrace.gz"),
        ("nsys", "info", export, "--home", home),
        ("nsys", "summary", export, "--home", home),
        ("nsys", "tree", export, "--home", home),
        ("nsys", "search", export, "range", "--home", home),
        ("nsys", "export-json", export, "-o", out / "job.json", "--home", home),
        ("nsys", "viewer", export, "-o", out / "job.html", "--home", home),
    ):
        done = traceviz(*arguments, code=None)
        assert done.returncode in (0, 2), (arguments, done.stderr)
        assert "Traceback" not in done.stderr, (arguments, done.stderr)
        shown += done.stdout + done.stderr
    shown += "".join(capfd.readouterr())
    # What is taken out leaves its mark, so the texts did come through.
    assert "***" in shown
    everything = shown + _written(home) + _written(out)
    for planted in PLANTED:
        at = everything.find(planted)
        assert at < 0, everything[max(0, at - 200) : at + 100]
