"""Published numbers replayed against our functions; parity-only variants live here.

A vector file is JSON with `method`, `case`, `origin`, `dtype`, `tolerance` {rtol, atol}, `inputs`
and `outputs`; non-finite numbers are the strings "nan", "inf", "-inf". Where a published function
differs from ours on purpose (statistics over turn rows, other epsilons), its formula is restated
here and nowhere else, so that library code holds one meaning of each word.
"""
