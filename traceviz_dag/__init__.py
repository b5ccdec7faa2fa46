"""traceviz_dag: which rank, stage or link makes a Megatron-LM training step slow, read from its traces."""
