"""Sessions: scheduling tasks, leases, recovery, control commands, the host process."""
