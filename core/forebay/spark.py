"""The Spark side, as programs import it: a sink that writes streaming queries' results to a changelog."""

from forebay_spark import *  # noqa: F403
from forebay_spark import __all__ as __all__
