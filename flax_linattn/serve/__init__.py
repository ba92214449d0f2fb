"""HTTP server of bundles: each client costs only the bytes of its state.

``make_app`` makes an ASGI application of a bundle: clients hold their own states, sealed, or have
sessions on the server, which survive a crash. ``flax-linattn serve`` runs the application.
"""

from flax_linattn.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
