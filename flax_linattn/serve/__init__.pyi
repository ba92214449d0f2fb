from flax_linattn.serve.app import make_app
from flax_linattn.serve.batcher import Batcher, OverloadError
from flax_linattn.serve.limits import Limits
from flax_linattn.serve.seal import Sealer, SealError
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
