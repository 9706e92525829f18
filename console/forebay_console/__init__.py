"""The console of both tiers: a page to look at, and the documents that it and others read."""
