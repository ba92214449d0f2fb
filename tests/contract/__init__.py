"""What every mechanism of the registry keeps; a new one is tested here without new code."""
