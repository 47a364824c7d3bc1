"""Where rows live, by ``store.name``: each store is a class in a file of its own, and a line here.

``ON_GPU`` has those that steps work on in a GPU's memory where ``store.gpu_bytes`` is set.
"""

from hpcrec.embedding.stores.device import DeviceStore
from hpcrec.embedding.stores.device_disk import DeviceDiskStore
from hpcrec.embedding.stores.disk import DiskStore
from hpcrec.embedding.stores.memory import MemoryStore

STORES = {"dram": MemoryStore, "gpu": DeviceStore, "disk": DiskStore}
ON_GPU = {"disk": DeviceDiskStore}
