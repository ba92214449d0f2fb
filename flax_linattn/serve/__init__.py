"""HTTP server of bundles: each client costs only the bytes of its state.

``make_app`` makes an ASGI application of a bundle: clients hold their own states, sealed, or have
sessions on the server, which survive a crash. ``flax-linattn serve`` runs the application.
"""

from flax_linattn.serve.app import make_app
from flax_linattn.serve.batcher import Batcher, OverloadError
from flax_linattn.serve.seal import Sealer, SealError
from flax_linattn.serve.server import Limits
from flax_linattn.serve.sessions import SessionStore

__all__ = [
    "Batcher",
    "Limits",
    "OverloadError",
    "SealError",
    "Sealer",
    "SessionStore",
    "make_app",
]
