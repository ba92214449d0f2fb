"""The mechanisms, one by one."""
