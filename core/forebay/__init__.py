"""forebay: the state of Spark streams, served by key over REST, with the lag of every answer."""

from importlib.metadata import version

__version__ = version("forebay")
