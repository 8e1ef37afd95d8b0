"""Loss strings and their settings."""

from pathlib import Path

import pytest

from turncredit.core.errors import ConfigError
from turncredit.core.losses import LOSS_TERMS, POLICY_LOSSES, parse_loss


def test_names_and_defaults():
    spec = parse_loss("ppo+sdar+kl", {"kl_order": 2, "clip_high_threshold": 1.28})
    assert (spec.policy, spec.terms) == ("ppo", ("sdar", "kl"))
    assert spec.settings == {
        "clip_low_threshold": 0.8, "clip_high_threshold": 1.28, "dual_clip": 0.0,
        "sdar_beta": 5.0, "kl_coefficient": 0.01, "kl_order": 2,
    }  # fmt: skip
    assert parse_loss("importance_sampling").settings == {}


def test_every_default_is_accepted():
    for policy in POLICY_LOSSES:
        spec = parse_loss("+".join([policy, *LOSS_TERMS]))
        assert spec.terms == tuple(LOSS_TERMS)


@pytest.mark.parametrize(
    ("loss_fn", "config", "message"),
    [
        ("pop", {}, 'no loss "pop". Did you mean "ppo"'),
        ("", {}, 'no loss ""'),
        ("ppo+sdr", {}, 'no loss term "sdr". Did you mean "sdar"'),
        ("ppo+", {}, 'no loss term ""'),
        ("ppo + kl", {}, 'Did you mean "ppo"'),
        ("sdar", {}, 'write "ppo\\+sdar"'),
        ("ppo+gspo", {}, "is a policy loss and there is one already"),
        ("ppo+kl+kl", {}, "twice"),
        ("ppo", {"sdar_beta": 5}, 'no setting "sdar_beta"'),
        ("ppo+kl", {"kl_coeficient": 1}, 'Did you mean "kl_coefficient"'),
        ("importance_sampling", {"clip_low_threshold": 0.8}, "it has none"),
        ("ppo", {"clip_low_threshold": 1.2}, "clip_low_threshold"),
        ("ppo", {"clip_high_threshold": 0.2}, "a ratio of 1 or more"),
        ("ppo", {"dual_clip": 0.5}, "above 1, or 0 for none"),
        ("ppo+sdar", {"sdar_beta": -1}, "0 or more"),
        ("ppo+jsd", {"jsd_beta": 1.5}, "in \\[0, 1\\]"),
        ("ppo+jsd", {"jsd_temperature": 0}, "above 0"),
        ("ppo+kl", {"kl_order": 4}, "1, 2 or 3"),
        ("ppo+kl", {"kl_coefficient": float("nan")}, "a number"),
        ("ppo+entropy", {"entropy_coefficient": float("inf")}, "a number"),
        ("ppo+opid", {"opid_clip": -0.1}, "opid_clip"),
    ],
)
def test_what_cannot_be_is_refused_with_the_cure(loss_fn, config, message):
    with pytest.raises(ConfigError, match=message):
        parse_loss(loss_fn, config)


def test_the_page_names_every_loss_and_setting_with_its_default():
    page = (Path(__file__).parents[2] / "docs" / "losses.md").read_text("utf-8")
    for name, settings in {**POLICY_LOSSES, **LOSS_TERMS}.items():
        (line,) = [row for row in page.splitlines() if row.startswith(f"| `{name}` |")]
        for key, default in settings.items():
            assert f"`{key}` {default:g}" in line
