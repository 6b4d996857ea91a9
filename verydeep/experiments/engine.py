"""The engines by name: how the trials of a grid are run."""

from verydeep.data.image_list import num_cores
from verydeep.errors import UsageError, resolve_name
from verydeep.experiments.job import Engine
from verydeep.experiments.local_engine import in_turn, side_by_side, visible_gpus

ENGINES = ("local", "ray")


def engine_by_name(name: str, processes: int | None = None, address: str | None = None) -> Engine:
    """The engine of `--engine`, checked before anything runs.

    Args:    processes: of local; default: one a GPU, or one a core where there is none
             address: of ray
    Raises:  UsageError: if the name is unknown, a value is for the other engine, or Ray is not installed.
    """
    name = resolve_name("engine", name, ENGINES)
    if name == "ray":
        if processes is not None:
            raise UsageError(
                f"processes {processes} with engine ray: is for engine local; Ray runs as many as its nodes hold"
            )
        from verydeep.experiments.ray_engine import on_cluster

        return on_cluster(address)
    if address is not None:
        raise UsageError(f"address {address!r} with engine local: is for engine ray")
    processes = processes or len(visible_gpus()) or num_cores()
    return in_turn if processes == 1 else side_by_side(processes)
