"""The tests: contract/ for every mechanism, and beside it a mirror of the package."""
