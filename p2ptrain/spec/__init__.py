"""The job as data: graph, TrainSpec, references, and their validation."""
