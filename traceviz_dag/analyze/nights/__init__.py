"""Whether tonight's step is slower, and since when: limits, change points and verdicts, on arrays alone."""
