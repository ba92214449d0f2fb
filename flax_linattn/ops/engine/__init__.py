"""Read me first: how the engine makes every form of every mechanism.

Streaming mechanisms are a monoid, which three functions define:

- lift: a token (k, v, per-token inputs) -> the state of this token alone;
- merge: (earlier state, later state) -> the state of both; associative, with an identity;
- read: (query, state) -> output.

``streaming`` is their base class, and ``prefix`` derives all forms: causal outputs read a prefix,
other outputs read the total. Masked tokens are the identity. Packed segments restart the prefix.
A family replaces the generic causal forms by faster ones with equal results:

======================  ======================  ======================  ======================
family                  parallel                chunked                 recurrent
======================  ======================  ======================  ======================
any monoid              ``prefix``: one         ``chunks``: a loop      chunks of one token
                        associative scan        over chunks
``exponential`` sums    ``exponential_scan``:   one tile after another  a loop over tokens
(Aaren, RWKV)           all tiles at once
EA-``series``           ``series_scan``: all    as recurrent            a loop over tokens
                        tiles in lockstep
``kernel`` (linear,     one chunk of matrix     ``kernel_scan``         chunks of one token
TaylorShift)            products
``gated`` (GLA, delta   one chunk of matrix     ``chunk_scan``          chunks of one token
rule, retention)        products
cache, ``scored``       ``cache``: one block    ``blocks``              one query at a time
cache, ``channelwise``  ``cache``: one block    ``channel_blocks``      one query at a time
======================  ======================  ======================  ======================

Cache mechanisms (softmax, EA, expressive) have no finite state: ``cache`` stores keys and values,
``window`` only the last ones. ``stateless`` mechanisms mix whole sequences; ``buckets`` is
Reformer's. ``forms`` chooses form and sizes for ``form="auto"``; ``shards`` merges device states.

Time is divided into *spans*: any consecutive tokens, which have one state. A *chunk* is the span of
one loop iteration, a *tile* a chunk of a hand-derived scan, a *shard* the span on one device. A
*block* is a tile of the matrix of queries x keys (``block_plan``).

Parts of mechanisms: ``decays`` (sums of log-decays), ``gates`` (how layers compute them),
``double_float`` (their differences in cache mechanisms), ``features``, ``monomials`` and
``random_features`` (feature maps), ``polynomials`` (weights that are polynomials) and
``polynomial_kernel`` (which chooses between them and features). Tools: ``tiles`` (array operations
on time), ``recompute_vjp`` (a gradient that stores only inputs), ``primal_only`` (other code where
nothing is differentiated).
"""
