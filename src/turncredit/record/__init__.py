"""The run folder, the ledger, and mirrors of the metrics."""
