"""State on disk: the stores, and the directories that hold them."""
