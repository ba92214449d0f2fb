"""What every test of this folder runs under."""

from tests.compilation import compile_quickly

__all__ = ["compile_quickly"]
