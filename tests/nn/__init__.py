"""The Flax modules, one by one."""
