"""AgentOPSD and GRPO in one file: the whole algorithm on the smallest task that needs it.

A corridor has 8 doors; at each the policy goes left (0) or right (1). Only the key door matters:
right there wins, anything else loses. The policy is one logit a door, p(right) = sigmoid(logit).
The teacher is the same policy with a hint, which adds 2 to the logit of the door it names.

GRPO gives all 8 turns of a trajectory its advantage A, so it also reinforces 7 accidents.
AgentOPSD asks how far each turn moves the teacher's belief in success and shifts credit there:

    evidence   e_k = log p_teacher(a_k) - log p_student(a_k)
    cumulative c_k = gamma c_{k-1} + e_k
    belief     B_k = sigmoid(logit(B_0) + c_k),   B_0 = success rate of the group
    weight     w_k = clip(1 + bound z_k, 1 - bound, 1 + bound),  z = zscore(sign(A) (B_k - B_{k-1}))
    advantage  A_k = A ((1 - lambda) + lambda w_k)

Run it:  python examples/one_file.py            (NumPy only, about ten seconds)
"""

import sys

import numpy as np

DOORS, KEY, HINT = 8, 2, 2.0
GROUPS, SIZE, LEARNING_RATE = 4, 8, 4.0
GAMMA, LAMBDA, BOUND, EPSILON = 0.95, 0.5, 0.2, 1e-4
CLIP_LOW, CLIP_HIGH = 0.8, 1.24


def sigmoid(x):
    """Logistic function."""
    return 1 / (1 + np.exp(-x))


def log_prob(logit_K, action_GK):
    """Log-probability of each action, (G, K)."""
    return -np.log1p(np.exp(np.where(action_GK == 1, -logit_K, logit_K)))


def rollout(logit_K, rng):
    """A group of trajectories: actions (G, K) and rewards (G,)."""
    action_GK = (rng.random((SIZE, DOORS)) < sigmoid(logit_K)).astype(int)
    return action_GK, action_GK[:, KEY].astype(float)


def outcome(reward_G):
    """GRPO: each reward against its group, zero when all are equal: (G,)."""
    if np.ptp(reward_G) == 0:
        return np.zeros(len(reward_G))
    return (reward_G - reward_G.mean()) / (reward_G.std() + EPSILON)


def grpo(reward_G, evidence_GK):
    """Every turn of a trajectory gets the trajectory's advantage: (G, K)."""
    return np.repeat(outcome(reward_G)[:, None], evidence_GK.shape[1], axis=1)


def agentopsd(reward_G, evidence_GK, mix=LAMBDA, bound=BOUND):
    """That advantage, moved a bounded way to the turns the teacher cares about: (G, K)."""
    advantage_G = outcome(reward_G)
    prior = np.clip(reward_G.mean(), EPSILON, 1 - EPSILON)
    cumulative_GK = np.zeros_like(evidence_GK)
    total_G = np.zeros(len(reward_G))
    for k in range(evidence_GK.shape[1]):
        total_G = GAMMA * total_G + evidence_GK[:, k]
        cumulative_GK[:, k] = total_G
    belief_GK = sigmoid(np.log(prior / (1 - prior)) + cumulative_GK)
    before_GK = np.hstack([np.full((len(reward_G), 1), prior), belief_GK[:, :-1]])
    credit_GK = np.sign(advantage_G)[:, None] * (belief_GK - before_GK)
    spread_G1 = credit_GK.std(axis=1, keepdims=True) + EPSILON
    z_GK = (credit_GK - credit_GK.mean(axis=1, keepdims=True)) / spread_G1
    weight_GK = np.clip(1 + bound * z_GK, 1 - bound, 1 + bound)
    return advantage_G[:, None] * ((1 - mix) + mix * weight_GK)


def ppo_gradient(logit_K, action_GK, old_GK, advantage_GK):
    """Descent direction of the clipped loss, summed over a group: (K,)."""
    ratio_GK = np.exp(log_prob(logit_K, action_GK) - old_GK)
    plain_GK = -advantage_GK * ratio_GK
    clipped_GK = -advantage_GK * np.clip(ratio_GK, CLIP_LOW, CLIP_HIGH)
    slope_GK = np.where(clipped_GK > plain_GK, 0.0, plain_GK)  # by the log-probability
    return (slope_GK * (action_GK - sigmoid(logit_K))).sum(axis=0)


def train(method, seed, steps=60, hinted_door=KEY, **settings):
    """Probability of the right way at the key door, and drift of the other logits, per update."""
    rng = np.random.default_rng(seed)
    logit_K = np.full(DOORS, -1.0)
    hint_K = np.where(np.arange(DOORS) == hinted_door, HINT, 0.0)
    history = []
    for _ in range(steps):
        gradient_K = np.zeros(DOORS)
        for _ in range(GROUPS):
            action_GK, reward_G = rollout(logit_K, rng)
            student_GK = log_prob(logit_K, action_GK)
            teacher_GK = log_prob(logit_K + hint_K, action_GK)
            advantage_GK = method(reward_G, teacher_GK - student_GK, **settings)
            gradient_K += ppo_gradient(logit_K, action_GK, student_GK, advantage_GK)
        logit_K = logit_K - LEARNING_RATE * gradient_K / (GROUPS * SIZE * DOORS)
        others = np.delete(logit_K, KEY)
        history.append((sigmoid(logit_K[KEY]), np.abs(others + 1).mean()))
    return np.array(history)


def main(seeds=20):
    """Print a row per arm."""
    arms = [
        ("grpo", grpo, {}),
        ("agentopsd", agentopsd, {}),
        ("agentopsd, mix 1, bound 0.9", agentopsd, {"mix": 1.0, "bound": 0.9}),
        ("agentopsd, wrong hint", agentopsd, {"hinted_door": KEY + 4}),
    ]
    print(f"P(right way at the key door), {seeds} seeds, {GROUPS} groups of {SIZE} an update\n")
    print(f"{'method':28} {'step 10':>15} {'step 30':>9} {'step 60':>9} {'drift elsewhere':>16}")
    for name, method, settings in arms:
        runs = np.array([train(method, seed, **settings) for seed in range(seeds)])
        at10, at30, at60 = (runs[:, step - 1, 0] for step in (10, 30, 60))
        error = at10.std(ddof=1) / seeds**0.5
        line = f"{name:28} {at10.mean():6.3f} +- {error:.3f} {at30.mean():9.3f} {at60.mean():9.3f}"
        print(f"{line} {runs[:, -1, 1].mean():16.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
