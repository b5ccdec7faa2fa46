"""Records of pipeline operations that a training framework kept itself, without a profiler."""
