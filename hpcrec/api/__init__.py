"""The Python interface: what ``hpcrec.train``, ``load``, ``prepare`` and ``launch`` do, each a module (docs/python.md).

They do in a user's own process what the commands of these names do, and leave it as they found it. What both do on
every rank is ``commands``, of which the command line is a thin layer.
"""
