"""Prices: what is published, what the user says, and what nobody knows."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from turncredit.core.errors import ConfigError, DataError
from turncredit.record.prices import Price, Prices, missing, read_prices

RATES = {"prefill": 1.0, "cached": 0.1, "sample": 3.0, "train": 2.0}


def table(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "prices.toml"
    file.write_text(text)
    return file


def test_what_is_shipped_names_its_source_and_day() -> None:
    entries = read_prices().entries
    assert entries
    for price in entries:
        assert price.source.startswith("https://"), price
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", price.as_of), price
        assert None not in (price.prefill, price.sample, price.train)


def test_nothing_is_guessed() -> None:
    prices = read_prices()
    for service, model in (("local", "household-tiny"), ("pytrio", "Qwen/Qwen3.5-4B")):
        assert prices.find(service, model) is None
        assert model in missing(service, model)
        assert "--prices" in missing(service, model)
    assert prices.find("tinker", "Qwen/nobody") is None


def test_what_may_have_been_meant_is_named() -> None:
    prices = read_prices()
    assert 'Did you mean "tinker"?' in missing("tinkr", "Qwen/Qwen3-8B", prices)
    assert "Did you mean" not in missing("local", "household-tiny", prices)
    text = missing("tinker", "household-tiny", prices)
    assert "Did you mean" not in text
    models = [price.model for price in prices.entries if price.service == "tinker"]
    assert "an entry without model is for all" in text
    assert text.endswith(
        f"that has one (costs RUN --model, serve-loopback --priced-as): {', '.join(models)}"
    )


def test_four_rates_and_an_hour() -> None:
    price = Price(service="x", **RATES, hour=36.0)
    millions = {"prefill": 2, "teacher": 1, "cached": 10, "sampled": 0.5, "trained": 4}
    tokens = {kind: n * 1_000_000 for kind, n in millions.items()}
    assert price.of(tokens, 100.0) == pytest.approx(3 * 1 + 10 * 0.1 + 0.5 * 3 + 4 * 2 + 1.0)
    assert Price(service="x", hour=36.0).of(tokens, 100.0) == pytest.approx(1.0)


def test_what_may_have_come_from_a_cache_is_charged_in_full() -> None:
    price = Price(service="x", **RATES)
    assert price.of({"prefill": 1_000_000, "cached": None}, 0.0) == pytest.approx(1.0)
    dear = Price(service="x", **{**RATES, "cached": None})
    assert dear.of({"cached": 1_000_000}, 0.0) == pytest.approx(1.0)


def test_the_users_table_comes_first_and_the_model_before_any(tmp_path: Path) -> None:
    file = table(
        tmp_path,
        """
        [[price]]
        service = "local"
        currency = "EUR"
        hour = 2
        [[price]]
        service = "tinker"
        model = "Qwen/Qwen3.5-4B"
        prefill = 9
        sample = 9
        train = 9
        """,
    )
    prices = read_prices(file)
    local = prices.find("local", "household-tiny")
    assert local
    assert (local.currency, local.hour, local.model) == ("EUR", 2.0, "*")
    mine = prices.find("tinker", "Qwen/Qwen3.5-4B")
    assert mine
    assert mine.prefill == 9
    assert "your own table" in str(mine)
    published = prices.find("tinker", "Qwen/Qwen3-8B")
    assert published
    assert published.as_of in str(published)
    both = Prices([Price(service="a", hour=1.0), Price(service="a", model="m", hour=2.0)])
    named = both.find("a", "m")
    assert named
    assert named.hour == 2.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[price]\n", "not valid TOML"),
        ("service = 'x'\n", r"\[\[price\]\]"),
        ("[price]\nservice = 'x'\n", r"\[\[price\]\]"),
        ("[[price]]\nmodel = 'm'\n", "entry 1, line 1: it names no service"),
        ("[[price]]\nservice = 'x'\n", "entry 1, line 1: it has no rate"),
        ("[[price]]\nservice = 'x'\nprefill = 1\nhour = 1\n", "together"),
        ("[[price]]\nservice = 'x'\ncached = 1\nhour = 1\n", "together"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = table(tmp_path, text)
    with pytest.raises(DataError, match=words) as raised:
        read_prices(file)
    assert str(file) in str(raised.value)


WRONG = [
    ("currency = ''", "currency is ''; write its code"),
    ("currency = ' '", "currency is ' '; write its code"),
    (r'currency = "E\nUR"', r"currency is 'E\\nUR'"),
    (r'currency = "EUR\n"', r"currency is 'EUR\\n'"),
    (r'currency = "\u001b[31mEUR"', r"currency is '\\x1b\[31mEUR'"),
    ("currency = 'e/u'", "currency is 'e/u'"),
    (f"currency = '{'E' * 40}'", "1 to 12 letters"),
    (r'model = "a\nb"', "model is 'a.*one line"),
    (r'model = "a\u202Eb"', "without control characters"),
    ("model = ''", "model is empty; write its name"),
    (f"model = '{'m' * 201}'", "at most 200 characters"),
    (r'source = "\u0007"', "source is"),
    ("as_of = 2026-09-10", "as_of is .*give text"),
    ("hour = -1", "hour is -1; write what an hour of the machine costs"),
    ("hour = nan", "hour is nan; .* a number from 0 to 1e"),
    ("hour = inf", "hour is inf"),
    ("hour = 1e10", "hour is 1e"),
    (f"hour = {'9' * 400}", "hour is a number of 400 digits"),
    ("hour = 'free'", "hour is 'free'; give a number"),
    ("prefil = 1", 'no key "prefil". Did you mean "prefill"'),
    ("output = 1", 'no key "output". It is called "sample" here'),
    ("Cached-Input = 1", 'no key "Cached-Input". It is called "cached" here'),
    ("storage = 1", 'no key "storage". .*nothing else is counted'),
    ("per = 'thousand tokens'", "rates are for a million tokens"),
]


@pytest.mark.parametrize(("line", "words"), WRONG)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, line: str, words: str) -> None:
    rate = "" if line.startswith("hour") else "hour = 1\n"
    fine = "# mine\n[[price]]\nservice = 'x'\nhour = 2\n\n"
    file = table(tmp_path, f"{fine}[[price]]\nservice = 'y'\n{rate}{line}\n")
    number = 8 + bool(rate)
    with pytest.raises(DataError, match=words) as raised:
        read_prices(file)
    assert str(raised.value).startswith(f"prices {file}, entry 2, line {number}: ")
    assert "\n" not in str(raised.value)
    assert str(raised.value).isprintable()


def test_a_rate_for_one_token_is_refused_with_the_one_for_a_million(tmp_path: Path) -> None:
    text = "[[price]]\nservice = 'x'\nprefill = 0.3\nsample = 1.5e-06\ntrain = 0\n"
    with pytest.raises(DataError, match=r"line 4: sample is 1\.5e-06.*a million tokens.*: 1\.5\?"):
        read_prices(table(tmp_path, text))


def test_rates_that_may_be_for_a_thousand_tokens_are_remarked_on(tmp_path: Path) -> None:
    text = "[[price]]\nservice = 'x'\nprefill = 0.002\ncached = 0.0002\nsample = 0.008\ntrain = 0\n"
    with pytest.warns(UserWarning, match=r"entry 1: .*a thousand times as much \(8\)"):
        (mine,) = read_prices(table(tmp_path, text)).entries[:1]
    assert mine.sample == 0.008  # it may be meant
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_prices(table(tmp_path, text.replace("0.008", "0.8")))
        read_prices(table(tmp_path, "[[price]]\nservice = 'x'\nhour = 0.001\n"))
        read_prices(table(tmp_path, "[[price]]\nservice = 'x'\nprefill=0\nsample=0\ntrain=0\n"))


def test_a_cache_that_costs_more_than_computing_is_refused(tmp_path: Path) -> None:
    text = "[[price]]\nservice = 'x'\nprefill = 1\ncached = 2\nsample = 1\ntrain = 1\n"
    with pytest.raises(DataError, match=r"line 4: cached is 2, more than prefill \(1\).*swapped"):
        read_prices(table(tmp_path, text))


def test_a_table_in_another_form_names_the_entry_alone(tmp_path: Path) -> None:
    file = table(tmp_path, "price = [{service = 'x', hour = 1}, {service = 'y', hour = -1}]\n")
    with pytest.raises(DataError, match="entry 2: hour is -1"):
        read_prices(file)


def test_a_number_python_will_not_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not valid TOML"):
        read_prices(table(tmp_path, f"[[price]]\nservice = 'x'\nhour = {'9' * 5000}\n"))


def test_no_such_table(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_prices(tmp_path / "none.toml")


def test_a_price_in_python_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="no rate"):
        Price(service="x")


def test_the_table_of_the_docs_can_be_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "costs.md").read_text("utf-8")
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    own = read_prices(table(tmp_path, text)).entries[:2]
    assert [(price.service, price.model) for price in own] == [
        ("local", "*"),
        ("pytrio", "Qwen/Qwen3.5-4B"),
    ]


def test_what_the_article_counted_by_published_rates() -> None:
    price = read_prices().find("tinker", "Qwen/Qwen3.5-4B")
    assert price is not None
    millions = {"prefill": 212.95, "cached": 549.26, "sampled": 9.98, "trained": 30.52}
    cost = price.of({kind: n * 1e6 for kind, n in millions.items()}, 0.0)
    assert cost == pytest.approx(139.0, abs=0.1)
