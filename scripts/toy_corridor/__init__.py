"""A corridor of doors, and any registered method learning to walk it: what `toy_study.py` repeats.

A corridor has 8 doors; at each the policy goes left (0) or right (1). Right at the key door wins,
the other seven change nothing. The policy is one logit a door, p(right) = sigmoid(logit), all at -1
in the beginning; an update is one group of 8 walks and one plain gradient step. Every method gets
the same number of walks and, seed by seed, the same random numbers. A hint adds to the logit of the
door it names, for whoever reads it: a teacher, or a student that acts with it.

Credit, folding and schedules are the library's, on its own `Group`s. The loss is the first-order
policy gradient, which is what every policy loss comes to in one step from the weights that sampled:
the ratio is 1 and no clip is reached, so PPO, CISPO, importance sampling and GSPO (whose rows are
all of one length here) are one loss. What of a method's surroundings has no place in a corridor is
replaced by its nearest equivalent: `study.READINGS` says by which, and so does the page in docs/.
"""
