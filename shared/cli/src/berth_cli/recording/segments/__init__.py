"""The segments of `berth record --keep`: their folder, the keeper that writes them, and several read as one."""
