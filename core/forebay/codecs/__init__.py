"""Key and value codecs: how keys and values are written in the changelog, in stores, in URLs and in JSON."""
