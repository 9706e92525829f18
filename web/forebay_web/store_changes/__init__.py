"""The changes of many keys of a store on one connection: selection, pages, ids, and the streams on both tiers."""
