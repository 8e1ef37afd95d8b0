"""Published numbers replayed against our functions; parity-only variants live here."""
