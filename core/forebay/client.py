"""A client of routers and workers, as programs import it."""

from forebay_client import *  # noqa: F403
from forebay_client import __all__ as __all__
