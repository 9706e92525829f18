"""The worker tier: keeps changelogs in local RocksDB and answers reads from them, with their lag."""
