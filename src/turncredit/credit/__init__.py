"""Credit methods: pure functions of a group."""
