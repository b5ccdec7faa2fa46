"""The Python API: a job, its iterations, and answers about them; ``docs/python.md`` promises what is public."""
