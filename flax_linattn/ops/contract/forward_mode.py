"""Error message for forward-mode differentiation of a hand-derived gradient."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def explain_forward_mode_error(name: str, form: str) -> Iterator[None]:
    """Replaces JAX's error about forward mode by one that names the form that supports it.

    JAX raises the error when it compiles or runs a program, so inside a caller's ``jax.jit`` the
    message remains JAX's.

    Args:
        name: Name of the mechanism.
        form: Form that the caller requested.

    Raises:
        TypeError: If the gradient inside is derived by hand, and so has no forward mode.

    Example:
        >>> with explain_forward_mode_error("aaren", "auto"):
        ...     raise TypeError("can't apply forward-mode autodiff (jvp) to a custom_vjp function.")
        Traceback (most recent call last):
        ...
        TypeError: 'aaren' with form='auto' has a hand-derived gradient \
(custom_vjp) and no forward-mode derivative (jax.jvp, jax.linearize, jax.jacfwd); use \
form='parallel', which supports both but needs more memory.
    """
    try:
        yield
    except (TypeError, NotImplementedError) as error:
        # Reverse mode over forward mode fails with "custom_lin".
        if "forward-mode autodiff" not in str(error) and "custom_lin" not in str(error):
            raise
        raise TypeError(
            f"{name!r} with form={form!r} has a hand-derived gradient (custom_vjp) and "
            "no forward-mode derivative (jax.jvp, jax.linearize, jax.jacfwd); use "
            "form='parallel', which supports both but needs more memory."
        ) from error
