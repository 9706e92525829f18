"""What ``forebay doctor`` checks: this machine, the changelog, and the processes that are to answer."""
