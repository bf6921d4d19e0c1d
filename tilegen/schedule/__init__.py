"""From a graph to a plan on a machine: tile configs, policies, order, waits; and the simulator that judges
them."""
