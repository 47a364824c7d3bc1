"""Where rows live, by ``store.name``: each store is a class in a file of its own, and a line here."""

from hpcrec.embedding.stores.device import DeviceStore
from hpcrec.embedding.stores.disk import DiskStore
from hpcrec.embedding.stores.memory import MemoryStore

STORES = {"dram": MemoryStore, "gpu": DeviceStore, "disk": DiskStore}
