"""The accounts of a run: every call of its backend, booked on an update and a purpose.

A phase sets both for the task that enters it and for all tasks started inside, so that counts land
where they belong whatever runs at the same time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from turncredit.core.clients import Backend, MeasuredBackend
from turncredit.core.costs import Ceilings, ModelShape
from turncredit.core.metering import MeteredBackend
from turncredit.core.types import Group, Usage
from turncredit.loop import floor
from turncredit.loop.budget import Budget
from turncredit.loop.reads import Extent, Reads
from turncredit.loop.watching import watched
from turncredit.record.ledger import Ledger
from turncredit.record.prices import Prices, missing
from turncredit.record.runlog import RunFolder


@dataclass(frozen=True, slots=True)
class _Purpose:
    step: int | None = None
    teacher: bool = False


_LOOSE = _Purpose()  # of calls outside all phases: they belong to the update that ends next
_NOW: ContextVar[_Purpose | None] = ContextVar("purpose", default=None)


class Accounts:
    """Books the calls of one backend; `backend` is the one to use from then on.

    Attributes:
        budget: what may be spent, and what is.
    """

    def __init__(
        self, backend: Backend, prices: Prices, *, model: str = "", limit: float | None = None
    ) -> None:
        self._inner, self._model, self._prices = backend, model, prices
        self.backend: Backend = watched(backend, self)
        self._ledger = Ledger()
        self._price = prices.find(backend.name, model)
        self._meter = backend.meter if isinstance(backend, MeteredBackend) else None
        if self._meter:
            self._meter.listen(self._charge)
        self._booked = backend.usage()  # by a backend without a meter
        self.budget = Budget(
            self._price, limit, backend.usage, unpriced=missing(backend.name, model, prices)
        )
        self._dearest = 0.0  # of all updates so far
        self._reads: defaultdict[_Purpose, Reads] = defaultdict(Reads)
        self._rows, self._most_rows = 0, 0
        self._ceilings: Ceilings | None = None
        self._measured = False

    def resume(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Go on from the records of earlier updates."""
        records = list(records)
        self._ledger = Ledger.resume(records)
        amounts = [money["amount"] for row in records if (money := row.get("money"))]
        self._dearest = max(amounts, default=0.0)

    def keep_spending(self, folder: RunFolder) -> str:
        """From now on the folder says what was spent, whatever becomes of this process.

        Returns:
            What a person should know of earlier starts that made no update, or nothing.

        Raises:
            ConfigError: it was spent in another currency than there is a limit in.
        """
        note = folder.spent()
        self.budget.resume(note, self._spent_before(), folder.write_spent)
        if not note or not note["amount"] or self.totals()["steps"]:
            return ""
        counts = self._price is not None and self._price.currency == note["currency"]
        return (
            f"up to {note['amount']:.4g} {note['currency']} were spent in {folder.path} by a start "
            f"that made no update: {'counted' if counts else 'not counted, without such a price'}"
        )

    def _spent_before(self) -> Mapping[str, Any] | None:
        """Money of the closed updates; by the present price where some were counted by none."""
        totals = self.totals()
        if totals["steps"] and totals["money"] is None and self._price:
            seconds = totals["seconds"].get("step", 0.0)
            amount = self._price.of(totals["tokens"], seconds)
            return {"currency": self._price.currency, "amount": amount}
        return totals.get("money")

    def foresee(self, step: int) -> None:
        """Refuse to begin an update that would end in the middle, if it costs what others did.

        Raises:
            BudgetReached: the dearest update so far does not fit any more.
        """
        self.budget.check(self._dearest, f"update {step}, like the dearest so far,")

    @contextmanager
    def phase(self, step: int, name: str, *, teacher: bool = False) -> Iterator[None]:
        """Time a phase of an update, and book on it what is asked of the backend inside."""
        key = self._ledger.key(step)
        before = _NOW.set(_Purpose(key, teacher))
        try:
            with self._ledger.phase(name, key):
                yield
        finally:
            _NOW.reset(before)

    def close(self, step: int, groups: Sequence[Group] | None = None) -> dict[str, Any]:
        """The record of an update, which is then over.

        Args:
            step: the update; with what was booked on none.
            groups: the games played in it; None where none are.
        """
        self.used()
        student, teacher = (self._taken(step, teacher=t) for t in (False, True))
        unique, teacher_unique = student.unique(), teacher.unique()
        used = self._ledger.usage(step)
        more: dict[str, Any] = {
            "tokens": {"unique": unique.tokens, "teacher_unique": teacher_unique.tokens}
        }
        if groups is not None:
            more["games"] = _games(groups)
        if shape := self._shape():
            more |= self._arithmetic(
                shape,
                [(student, unique, used[0].prefill), (teacher, teacher_unique, used[1].prefill)],
            )
        if self._price:
            spent = self._price.of(_kinds(*used), self._ledger.elapsed())
            more["money"] = {"currency": self._price.currency, "amount": spent}
            self._dearest = max(self._dearest, spent)
        self._most_rows = self._rows
        return self._ledger.end_step(step, more=more)

    def rolled(self, step: int) -> Usage:
        """What the student of an update that is still open has used."""
        return self._ledger.usage(step)[0]

    def rebook(self, step: int, usage: Usage, groups: Sequence[Group]) -> None:
        """Book a rollout that was read from a checkpoint as if it had just been played."""
        with self.phase(step, "rollout"):
            for t in (t for group in groups for t in (*group.trajectories, *group.faults)):
                for k, turn in enumerate(t.turns):
                    prompt = t.tokens[: turn.start].tolist()
                    self.reads.sample(t.snapshot_id, prompt, [t.action_tokens(k).tolist()])
        self._ledger.add(usage, step=step)

    def totals(self) -> dict[str, Any]:
        """All closed updates together."""
        return self._ledger.totals()

    @property
    def priced(self) -> str:
        """By which price money is counted, or why it is not."""
        if self._price and self.totals()["steps"] and self.totals()["money"] is None:
            return (
                "some updates were counted without a price, or in another currency; "
                "turncredit costs RUN counts all by one table"
            )
        return str(self._price or missing(self._inner.name, self._model, self._prices))

    # ── books, for the watched clients ───────────────────────────────────────────────────────

    @property
    def reads(self) -> Reads:
        """What this task asks for now."""
        return self._reads[_NOW.get() or _LOOSE]

    def used(self) -> None:
        """Book what the backend counted since the last time, unless its meter has told it.

        Exact if a backend counts as it answers, so that no other call comes between.
        """
        if self._meter is None:
            now = self._inner.usage()
            usage, self._booked = now.since(self._booked), now
            self._charge(usage)

    def _charge(self, usage: Usage) -> None:
        """Book on this task's purpose."""
        purpose = _NOW.get() or _LOOSE
        self._ledger.add(usage, teacher=purpose.teacher, step=purpose.step)

    def paid(self, most: Usage, what: str) -> AbstractAsyncContextManager[None]:
        """Around a call that uses at most so much."""
        return self.budget.paid(most, what)

    def under_way(self, rows: int) -> None:
        """Count the sequences in flight."""
        self._rows += rows
        self._most_rows = max(self._most_rows, self._rows)

    # ── arithmetic ───────────────────────────────────────────────────────────────────────────

    def _taken(self, step: int, *, teacher: bool) -> Reads:
        found = self._reads.pop(_Purpose(step, teacher), Reads())
        found.absorb(self._reads.pop(_Purpose(None, teacher), Reads()))
        return found

    def _shape(self) -> ModelShape | None:
        inner = self._inner
        return inner.model_shape() if isinstance(inner, MeasuredBackend) else None

    def _arithmetic(
        self, shape: ModelShape, parts: Sequence[tuple[Reads, Extent, int]]
    ) -> dict[str, Any]:
        work = floor.arithmetic(shape, parts)
        found: dict[str, Any] = {"flops": {"done": work.total, "floor": work.floor}}
        if not self._measured and isinstance(self._inner, MeasuredBackend):
            self._measured, self._ceilings = True, self._inner.ceilings()
        if self._ceilings:
            found["floor_seconds"] = floor.seconds(
                shape, self._ceilings, work, together=self._most_rows
            )
        return found


def _games(groups: Sequence[Group]) -> dict[str, int]:
    """Games that count, and how many of them were won."""
    played = [t for group in groups for t in group.trajectories]
    return {"played": len(played), "solved": sum(t.success for t in played)}


def _kinds(student: Usage, teacher: Usage) -> dict[str, int | None]:
    both = student + teacher
    return {
        "prefill": student.prefill,
        "teacher": teacher.prefill,
        "cached": both.cached,
        "sampled": both.sampled,
        "trained": both.trained,
    }
