"""The worker tier: keeps changelogs in local RocksDB and answers reads of them, lag attached."""
