"""Read me first: how the engine makes every form of every mechanism.

Streaming mechanisms are a monoid. Three functions define one:

- lift: a token (k, v, per-token inputs) -> the state of this token alone;
- merge: (earlier state, later state) -> the state of both spans; associative, with an identity;
- read: (query, state) -> output.

``prefix`` derives every form from them. Causal outputs read a prefix, other outputs read the total.

- parallel: one chunk, scanned by ``jax.lax.associative_scan``;
- chunked: ``chunks.scan_chunks`` carries the state from chunk to chunk;
- recurrent: chunks of one token; ``step`` is one of them.

Masked tokens are the identity. Packed segments reset the scan at their starts. ``shards`` merges
the states of devices that hold consecutive spans. ``forms`` alone decides what ``form="auto"``
means.

A family replaces the generic chunk by something faster and keeps the same results:

=====================  ==========================================================================
family                 files
=====================  ==========================================================================
any monoid             ``streaming`` (base class), ``prefix`` (all forms)
exponential sums       ``exponential`` (state and merge), ``exponential_scan`` (causal forms and
(Aaren, AFT, RWKV)     gradient), with decays in ``decays``
EA-series              ``series`` (state and merge), ``series_scan`` (causal forms and gradient)
kernels (linear,       ``kernel`` (a chunk by matrix products), ``kernel_scan`` (gradient), feature
TaylorShift)           maps in ``features``, ``monomials`` and ``random_features``
gated (GLA, delta      ``gated`` (a chunk by matrix products), ``chunk_scan`` (gradient), ``decays``
rule, retention)       and ``gates``
=====================  ==========================================================================

Cache mechanisms have no finite state. ``cache`` stores keys and values and makes all forms from
``attend_block``. ``scored`` (weights of q . k) runs ``blocks``; ``channelwise`` (weights per
channel) runs ``channel_blocks``; ``block_plan`` chooses the blocks. ``window`` is a ring of the
last tokens, ``single_query`` the step's product, and ``double_float`` sums the decays of forgetting
attention. ``stateless`` mechanisms mix whole sequences; ``buckets`` is Reformer's part of it.

Shared tools: ``tiles`` (time in tiles), ``recompute_vjp`` (a gradient that stores only the inputs)
and ``primal_only`` (another computation where nothing is differentiated).
"""
