"""From a configuration to the devices of this rank: of its rows, and of its model. Knows its place on its host."""

import torch

from hpcrec import kernels
from hpcrec.build.tables import store_class
from hpcrec.comm.gpu import takes_gpu_memory
from hpcrec.comm.topology import Topology
from hpcrec.comm.world import World
from hpcrec.config import Config
from hpcrec.dense.place import Place, emulated
from hpcrec.errors import MissingError


def make_device(config: Config, topology: Topology) -> kernels.Device | None:
    """The device that ``[store]`` asks for; None where rows are in main memory. Ranks of a host take GPUs in turn.

    Raises
    ------
    MissingError
        There is no GPU, or the kernels were not built.
    """
    if not store_class(config).on_device:
        return None
    try:
        device = kernels.device(config.store.device)
    except MissingError as error:
        if config.store.gpu_bytes is not None:
            raise MissingError(f"store.gpu_bytes is set, but {error}. Or remove it") from None
        raise MissingError(f"store.name is 'gpu', but {error}. Or set store.name = 'dram'") from None
    device.select(_turn(config, topology, device.count))
    return device


def make_place(config: Config, topology: Topology) -> Place:
    """Where this rank computes the model, and how.

    Raises
    ------
    MissingError
        There is no GPU.
    """
    wanted, autocast = config.dense.device, config.dense.autocast == "bf16"
    if not topology.is_dense or wanted == "cpu":
        return Place(autocast=autocast)
    if wanted == "emulated":
        return Place(emulated(), autocast, kernels.device("emulated"))
    if not torch.cuda.is_available():
        raise MissingError(
            f"dense.device is 'cuda', but there is no GPU that torch {torch.__version__} can use on host "
            f"{topology.machine} of rank {topology.rank}. See `hpcrec doctor`, or set "
            "dense.device = 'cpu'"
        )
    number = _turn(config, topology, torch.cuda.device_count())
    torch.cuda.set_device(number)
    try:
        device = kernels.device("cuda")
        device.select(number)
    except MissingError:  # built where there was no nvcc: the host assembles what the model receives
        device = None
    return Place(torch.device("cuda", number), autocast, device)


def crosses_directly(config: Config, world: World, place: Place) -> bool:
    """Whether messages cross from GPU to GPU by MPI; collective, the same on every rank."""
    here = store_class(config).on_device or place.assembler is not None
    known = world.main.allgather((here, takes_gpu_memory()))
    wanted = "off" if world.by_levels else config.exchange.gpu_messages
    possible = wanted == "on" or (wanted == "auto" and all(takes for _, takes in known))
    return possible and any(there for there, _ in known) and config.exchange.codec != "dct"


def _turn(config: Config, topology: Topology, devices: int) -> int:
    """Ranks of a host take its devices in turn: first those that surely use one, then those that may have copies."""
    rows = topology.owners if store_class(config).on_device else ()
    models = topology.dense if config.dense.device == "cuda" else ()
    use = [rank for rank in topology.machine_ranks if rank in rows or rank in models]
    may = [rank for rank in topology.machine_ranks if rank not in use]
    return [*use, *may].index(topology.rank) % devices
