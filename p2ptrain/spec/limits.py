"""How large a job may be; a spec beyond any of these is refused before anything of it
is allocated.
"""

from dataclasses import dataclass

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on a spec.

    Args:
        nodes: operator calls in a graph.
        inputs: inputs of a graph.
        outputs: outputs of a graph.
        values: results of all nodes of a graph.
        args: arguments of a node, and elements of one of them.
        dims: dimensions of a tensor.
        value_bytes: bytes of any one tensor.
        weight_bytes: bytes of all weights and buffers.
        refs: references to data in a group.
        samples: samples in a group.
        epochs: epochs of a schedule.
        parts: micro-batches in a step.
        metrics: metrics of an evaluation.
        name_chars: characters in a name.
        uri_chars: characters in a URI.
    """

    nodes: int = 100_000
    inputs: int = 20_000
    outputs: int = 40_000
    values: int = 400_000
    args: int = 4096
    dims: int = 16
    value_bytes: int = 16 * GIB
    weight_bytes: int = 128 * GIB
    refs: int = 4096
    samples: int = 2**40
    epochs: int = 100_000
    parts: int = 2**16
    metrics: int = 64
    name_chars: int = 256
    uri_chars: int = 4096
