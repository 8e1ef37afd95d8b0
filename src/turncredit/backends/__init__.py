"""Places where a policy is sampled and trained: tokens in, tokens and log-probs out."""
