"""A service on this machine that speaks PyTRIO's or Tinker's protocol: rehearse a paid run offline.

Nothing leaves the machine, and nothing is paid; the policy is that of the `local` backend.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from turncredit.backends import local
from turncredit.backends.hosted.normalise import REDUCTIONS
from turncredit.backends.loopback.faults import Plan
from turncredit.core.errors import ConfigError
from turncredit.core.settings import add_flags, coerce

HELP = "a PyTRIO or Tinker service on this machine, to rehearse a paid run"
SERVICES = ("pytrio", "tinker")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags, and those of the policy inside."""
    add = parser.add_argument
    add("service", choices=SERVICES, help="whose protocol")
    add("--port", type=int, default=8642, metavar="N", help="of 127.0.0.1; 0: any free one [8642]")
    add("--folder", type=Path, metavar="DIR", help="keeps saved weights [a temporary one]")
    add(
        "--faults",
        default="",
        metavar="PLAN",
        help="what goes wrong, as KIND[=SECONDS][@CHANCE][:PATH],... with an HTTP status, drop, "
        "lose_reply, delay or duplicate as the kind: 503@0.02,429@0.02,delay=0.2@0.5",
    )
    add("--seed", type=int, default=0, metavar="N", help="of the faults [0]")
    add("--prices", default="", metavar="FILE", help="your own table of prices, for the bill")
    add("--priced-as", default="", metavar="MODEL", help="model whose price is asked [its own]")
    add("--reduction", choices=REDUCTIONS, default="token_sum", help="of token losses [token_sum]")
    add("--max-seq-len", type=int, metavar="N", help="longer rows are refused [the model's]")
    add_flags(parser, local.Config, "policy")


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted, then print the bill."""
    from turncredit.backends.loopback.faults import parse
    from turncredit.backends.loopback.muscle import Quirks
    from turncredit.backends.loopback.rehearsal import rehearsal
    from turncredit.record.prices import missing, read_prices

    if not 0 <= args.port < 2**16:
        raise ConfigError(f"--port {args.port}: use 0 (any free one) to 65535")
    prices = read_prices(args.prices)
    plan = Plan(parse(args.faults), seed=args.seed)
    config = policy(vars(args))
    with ExitStack() as held:
        folder = args.folder or Path(
            held.enter_context(tempfile.TemporaryDirectory(prefix="turncredit-loopback-"))
        )
        made = rehearsal(
            args.service,
            config,
            folder,
            port=args.port,
            faults=plan,
            quirks=Quirks(reduction=args.reduction, longest=args.max_seq_len),
        )
        held.enter_context(made.server)
        with suppress(KeyboardInterrupt):
            print(_greeting(args.service, made.server.url, config), flush=True)
            threading.Event().wait()
        model = args.priced_as or config.base_model
        price, used = prices.find(args.service, model), made.billed()
        tokens = {kind: number for kind, number in asdict(used).items() if kind != "requests"}
        print(f"\n{used.requests} requests, {happened(plan)}", flush=True)
        cached = "?" if used.cached is None else f"{used.cached:,}"
        print(
            f"read {used.prefill:,} tokens (from cache {cached}), sampled {used.sampled:,}, "
            f"trained {used.trained:,}"
        )
        bill = f"{price.of(tokens, 0.0):.4g} {price.currency} by {price}" if price else None
        unknown = missing(args.service, model, prices)
        print(f"would have cost {bill or f'an unknown amount: {unknown}'}")
    return 0


def happened(plan: Plan) -> str:
    """What was injected: faults, and delays, by which nothing goes wrong."""
    late = sum(kind == "delay" for _, kind in plan.happened)
    wrong = len(plan.happened) - late
    return f"{wrong} fault{'s' * (wrong != 1)}, {late} delay{'s' * (late != 1)}"


def policy(given: dict[str, Any]) -> local.Config:
    """The settings of the policy inside, from parsed flags."""
    known = local.Config.__dataclass_fields__
    return coerce(local.Config, {k: v for k, v in given.items() if k in known}, "policy")


def _greeting(service: str, url: str, config: local.Config) -> str:
    flags = f"--backend {service} --base-url {url} --base-model {config.base_model}"
    if config.lora_rank != 32:
        flags += f" --lora-rank {config.lora_rank}"
    return (
        f"{service} on {url}, with {config.base_model} inside. In another terminal:\n"
        f"  turncredit train {flags} --recipe household-agentopsd --max-steps 2\n"
        "Ctrl-C (or kill) ends it and prints the bill."
    )
