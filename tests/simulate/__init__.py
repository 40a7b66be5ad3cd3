"""One seeded simulation of hosts, agents, people and faults. See `python -m tests.simulate --help`."""
