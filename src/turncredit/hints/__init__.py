"""Where privileged text comes from."""
