"""The operations, one by one."""
