"""The fast path: complete, ordinary reads of a key or a batch, handled in the callback that received them.

FastAPI declares every route and can answer everything; the fast path sits in front and handles the two shapes that
make up nearly all traffic. Anything not recognised with certainty falls through to the full parser.
"""
