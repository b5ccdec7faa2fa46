"""Which rank is where: coordinates, pipelines, replicas and process groups."""

from __future__ import annotations

from traceviz_dag.tables.schema import BIGINT, BY_ITERATION, INTEGER, RANKS, TEXT, Column, Table

TOPOLOGY = Table(
    "topology",
    "One rank's coordinates in Megatron's two rank grids (dense: tp, cp, dp, pp; expert: etp, ep, edp, pp).",
    BY_ITERATION,
    (
        Column("rank", BIGINT, "The global rank."),
        Column("tp", INTEGER, "Tensor-parallel coordinate."),
        Column("cp", INTEGER, "Context-parallel coordinate."),
        Column("dp", INTEGER, "Data-parallel coordinate (without context parallelism)."),
        Column("pp", INTEGER, "Pipeline coordinate, the stage."),
        Column("ep", INTEGER, "Expert-parallel coordinate."),
        Column("etp", INTEGER, "Expert-tensor-parallel coordinate."),
        Column("edp", INTEGER, "Expert-data-parallel coordinate."),
        Column("stage", INTEGER, "Position in its pipeline group."),
        Column("stages", INTEGER, "Stages of its pipeline group."),
        Column("pipeline", INTEGER, "Ordinal of its pipeline group, by lowest member rank."),
        Column("dense_replica", INTEGER, "Ordinal of its dense replica (ranks of one dp index)."),
        Column("expert_replica", INTEGER, "Ordinal of its expert replica (ranks of one edp index)."),
        Column("model_replica", INTEGER, "Ordinal of its complete model (connected dense and expert replicas)."),
        Column("source", TEXT, "distributed_info, text_file or computed."),
    ),
    how="Ranks with equal coordinates but for one are a group of that dimension: those that differ in `tp` alone "
    "are a tensor-parallel group. Ranks of one `pipeline`, by `stage`, pass micro-batches on.",
    commands=("topology",),
)

PROCESS_GROUPS = Table(
    "process_groups",
    "One process group with its members in order, and which source says so.",
    BY_ITERATION,
    (
        Column("group_name", TEXT, "pg_name in the trace header; NULL where only another source knows the group."),
        Column("description", TEXT, "pg_desc in the trace header."),
        Column("dimension", TEXT, "Parallel dimension that the group serves; unknown where nothing says."),
        Column("size", INTEGER, "Number of members."),
        Column("ranks", RANKS, "Members in group order; empty where no source lists them."),
        Column("source", TEXT, "distributed_info, text_file or computed."),
        Column("disagreement", TEXT, "How another source contradicts this row; NULL where none does."),
    ),
    how="`source` says who knows the group. Where another source contradicts it, `disagreement` says how, and the"
    " check `sources_agree` of `topology` warns.",
    commands=("topology",),
)
