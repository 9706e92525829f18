"""Several processes under one parent: how they start and end, how they find each other, and what they report
together."""
