"""The scorer: ranks the nodes for each pending pod. Stateless; any number run side by side."""
