"""Servers on 127.0.0.1 that speak a hosted trainer's wire protocol; their maths is a backend's."""
