"""When rows are read and gradients applied. Time, not bytes (those are ``exchange``). The list of policies."""

from hpcrec.policy.ahead import Ahead
from hpcrec.policy.cached import Cached
from hpcrec.policy.hybrid import Hybrid
from hpcrec.policy.policy import Policy
from hpcrec.policy.sync import Sync

POLICIES: dict[str, type[Policy]] = {"sync": Sync, "hybrid": Hybrid, "ahead": Ahead, "cached": Cached}
