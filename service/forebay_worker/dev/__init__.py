"""``forebay dev``: a cluster on this machine to try things on."""
