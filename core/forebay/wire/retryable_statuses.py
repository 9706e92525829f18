"""What an answer's status says about asking again: in which case another replica, server or moment may help."""

WITH_LAG = frozenset({200, 404})
"""A replica has read the key, and states its lag; bounds do not apply to refusals."""
AT_FAULT = frozenset({400, 409, 413})
"""The request cannot be answered, by whichever replica."""
FINAL = WITH_LAG | AT_FAULT | {410}
"""No replica would answer otherwise."""
OF_THE_REPLICA = frozenset({412, 421, 503})
"""Another replica may answer."""
OF_THE_SERVER = frozenset({429, 502, 503, 504})
"""Another server, or this one a moment later, may answer; includes a proxy's own."""
TRANSIENT = OF_THE_REPLICA | OF_THE_SERVER
"""A later attempt may be answered."""
