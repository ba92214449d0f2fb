"""Sealed states: a client holds its own state, but cannot change the state."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time

from flax_linattn.checks import check_positive

MIN_SECRET_BYTES = 16
_MAC_BYTES = 32
_TIME_BYTES = 8


class SealError(ValueError):
    """Error of a sealed state that was forged, changed or truncated, or is too old."""


class Sealer:
    """Seals the bytes of sessions with HMAC-SHA256 and the time.

    Servers with the same secret accept each other's states, so a client may send each observation
    to a different server. The bytes are signed, not encrypted: a client can read its own state. A
    sealed state can be used several times, to fork a stream or to repeat a request.

    Args:
        secret: Key of at least 16 bytes; None makes a random key, so that states end with the
            process.
        max_age: Seconds after which a sealed state is refused; None accepts all ages.

    Raises:
        ValueError: If the secret is too short, or ``max_age`` is not positive.

    Example:
        >>> sealer = Sealer(b"a secret of 16 b")
        >>> sealed = sealer.seal(b"state")
        >>> sealer.open(sealed)
        b'state'
        >>> sealer.open(sealed + b"!")
        Traceback (most recent call last):
        ...
        flax_linattn.serve.seal.SealError: the state was not sealed by this server, or was changed.
    """

    def __init__(self, secret: bytes | None = None, max_age: float | None = None) -> None:
        if secret is not None and len(secret) < MIN_SECRET_BYTES:
            raise ValueError(
                f"expected a secret of at least {MIN_SECRET_BYTES} bytes, got {len(secret)}."
            )
        if max_age is not None:
            check_positive(max_age=max_age)
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self._max_age = max_age

    def seal(self, content: bytes) -> bytes:
        """Returns the signature, the time and the content."""
        dated = int(time.time()).to_bytes(_TIME_BYTES, "little") + content
        return self._sign(dated) + dated

    def open(self, sealed: bytes) -> bytes:
        """Returns the content of a sealed state.

        Raises:
            SealError: If this server did not seal it, it was changed, or it is too old.
        """
        mac, dated = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
        if len(dated) < _TIME_BYTES or not hmac.compare_digest(mac, self._sign(dated)):
            raise SealError("the state was not sealed by this server, or was changed.")
        age = time.time() - int.from_bytes(dated[:_TIME_BYTES], "little")
        if self._max_age is not None and age > self._max_age:
            raise SealError(
                f"the state is {age:,.0f} seconds old, and this server accepts at most "
                f"{self._max_age:,.0f}."
            )
        return dated[_TIME_BYTES:]

    def _sign(self, content: bytes) -> bytes:
        return hmac.new(self._secret, content, hashlib.sha256).digest()
