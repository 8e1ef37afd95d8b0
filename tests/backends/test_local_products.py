"""Products of few rows are turned round; the numbers stay what they are."""

from __future__ import annotations

import pytest
import torch

from turncredit.backends.local import products


@pytest.mark.parametrize("rows", [1, 2, 8, 128, 129])
@pytest.mark.parametrize("outs", [7, 4096])
def test_both_forms_say_the_same(rows: int, outs: int) -> None:
    torch.manual_seed(rows)
    x, weight, bias = torch.randn(rows, 96), torch.randn(outs, 96), torch.randn(outs)
    base = torch.randn(rows, outs)
    wanted = x.double() @ weight.double().T
    for found, want in (
        (products.linear(x, weight), wanted),
        (products.linear(x, weight, bias), wanted + bias),
        (products.added(base, x, weight), wanted + base),
    ):
        assert found.is_contiguous()
        torch.testing.assert_close(found.double(), want, atol=1e-4, rtol=0)


def test_what_goes_in_stays() -> None:
    x, weight, bias = torch.randn(4, 96), torch.randn(4096, 96), torch.randn(4096)
    base = torch.randn(4, 4096)
    before = [t.clone() for t in (x, weight, bias, base)]
    products.linear(x, weight, bias)
    products.added(base, x, weight)
    assert all(torch.equal(a, b) for a, b in zip(before, (x, weight, bias, base), strict=True))


def test_gradients_pass_through() -> None:
    x = torch.randn(4, 96, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4096, 96, dtype=torch.float64)
    products.linear(x, weight).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, weight.sum(0).expand(4, -1))
