"""``traceviz simulate`` takes its options to the simulator and says what it made."""

from __future__ import annotations

from pathlib import Path

import typer
from typer.testing import CliRunner

from traceviz_dag.commands.simulate import simulate
from traceviz_dag.errors import UsageError

_SMALL = ["--layers", "2", "--hidden", "512", "--sequence", "256", "--microbatches", "2", "--workers", "1"]


def _run(*arguments: str):
    app = typer.Typer()
    app.command()(simulate)
    return CliRunner().invoke(app, [*_SMALL, *arguments])


def test_simulates_a_job(tmp_path: Path):
    result = _run(
        str(tmp_path / "job"), "--pp", "2", "--dp", "2", "--recompute", "full", "--no-gzip", "--slow-gpu", "1"
    )
    assert result.exit_code == 0, result.output
    assert "4 ranks, 1 steps" in result.output
    assert len(list((tmp_path / "job" / "iteration_10").glob("*.pt.trace.json"))) == 4
    assert (tmp_path / "job" / "truth" / "culprits.parquet").is_file()


def test_refuses_contradictions(tmp_path: Path):
    result = _run(str(tmp_path / "job"), "--vpp", "2")
    assert isinstance(result.exception, UsageError)
    assert not (tmp_path / "job").exists()
