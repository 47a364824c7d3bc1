"""From a configuration to the device that this rank's rows are in. Knows this rank's place on its host."""

from hpcrec import kernels
from hpcrec.comm.topology import Topology
from hpcrec.config import Config
from hpcrec.errors import MissingError


def make_device(config: Config, topology: Topology) -> kernels.Device | None:
    """The device that ``[store]`` asks for; None where rows are in main memory. Ranks of a host take GPUs in turn.

    Raises
    ------
    MissingError
        There is no GPU, or the kernels were not built.
    """
    if config.store.name != "gpu":
        return None
    try:
        device = kernels.device(config.store.device)
    except MissingError as error:
        raise MissingError(f"store.name is 'gpu', but {error}. Or set store.name = 'dram'") from None
    device.select(topology.host_ranks.index(topology.rank) % device.count)
    return device
