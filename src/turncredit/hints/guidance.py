"""DO and AVOID guidance from what told the successes and failures of one group apart.

For a group with both outcomes the analyser first reflects on a few of its successes and failures
(the shortest ones), then contrasts these reflections: what to do, what to avoid. Every member's
teacher reads the result at the front of the system message. Any other group has no guidance, hence
plain outcome credit. After GRSD, where the policy itself writes; the prompts, the number of
trajectories read and the analyser without a model are our reading.

What is inserted was written with the whole trajectory in view (`sees_future`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from turncredit.core.looks import Ask, Demand, Insertion, Look
from turncredit.core.settings import setting
from turncredit.core.types import Group, Trajectory
from turncredit.hints import rules
from turncredit.hints.analysis import AnalyserConfig, Analyst, key_of, together
from turncredit.hints.answers import Guidance, Reflection, read_guidance
from turncredit.hints.reflection import reflect
from turncredit.hints.texts import check_at_least

_PROMPT = """\
Several attempts at one and the same task were studied one by one. Some ended in success, others \
in failure. Find what told them apart.

{task}{notes}

Answer with one JSON object and nothing else, with exactly these two fields:
{{"do": ["..."], "avoid": ["..."]}}
do: what the successes did and the failures did not, as instructions for the next player.
avoid: what the failures did and the successes did not.
Each list has at most {most} entries, each entry is one line of at most {longest} characters. \
Leave a list empty when there is nothing to say.
"""


@dataclass(frozen=True)
class Config(AnalyserConfig):
    """Who writes the guidance, and from how many trajectories."""

    reflected_each: int = setting(2, "successes, and as many failures, that are reflected on")
    max_guidance: int = setting(4, "entries of DO, and of AVOID")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, reflected_each=self.reflected_each, max_guidance=self.max_guidance)

    @property
    def demand(self) -> Demand:
        """Questions about some members of every group, and one about all their answers."""
        return self.asking(per_group=2 * self.reflected_each + 1)


class GroupGuidance:
    """The source. `prepare` has the guidance of an update written; `looks` hands it out."""

    sees_future = True

    def __init__(self, config: Config) -> None:
        self._config = config
        self._analyst = Analyst(config)
        self._texts: dict[tuple[str, str, int, int], str] = {}

    async def prepare(self, groups: Sequence[Group], ask: Ask) -> Mapping[str, float]:
        """Have guidance written for every group with both outcomes.

        At most `2 reflected_each + 1` questions a group, `reflection_concurrency` at a time.

        Args:
            groups: of one update.
            ask: the snapshot that sampled; used by `analyser = "policy"` only.

        Returns:
            Counts of this update, named guidance/...

        Raises:
            EndpointError: the service refuses, or answered nothing.
        """
        self._analyst.begin(ask)
        mixed = [group for group in groups if all(sides(group))]
        texts = await together(self._write(group) for group in mixed)
        written = [(group, text) for group, text in zip(mixed, texts, strict=True) if text]
        self._texts = {key_of(t): text for group, text in written for t in group.trajectories}
        counts = {
            **self._analyst.spent(),
            "groups": float(len(groups)),
            "mixed_groups": float(len(mixed)),
            "guided_groups": float(len(written)),
        }
        return {f"guidance/{name}": value for name, value in counts.items()}

    def looks(self, group: Group) -> Sequence[Sequence[Look]]:
        """The group's guidance for every member; none where none was written."""
        found = (self._texts.get(key_of(t), "") for t in group.trajectories)
        return [[Look((Insertion(text),))] if text else [] for text in found]

    async def _write(self, group: Group) -> str:
        """The guidance of a group with both outcomes, or an empty text."""
        most, longest = self._config.max_guidance, self._config.skill_chars
        won, lost = sides(group)
        if self._config.analyser == "rules":
            return wording(rules.guide(won, lost, most=most, longest=longest))
        each = self._config.reflected_each
        chosen = [*won[:each], *lost[:each]]
        found = await together(reflect(t, self._analyst, self._config, most=0) for t in chosen)
        notes = [
            (trajectory.success, reflection)
            for trajectory, reflection in zip(chosen, found, strict=True)
            if reflection is not None
        ]
        if {success for success, _ in notes} != {True, False}:
            return ""  # nothing left to contrast
        read = partial(read_guidance, most=most, longest=longest)
        question = prompt(group, notes, most=most, longest=longest)
        guidance = await self._analyst.ask(question, read)
        return "" if guidance is None else wording(guidance)


def sides(group: Group) -> tuple[list[Trajectory], list[Trajectory]]:
    """Successes and failures with turns, each the shortest first (then by member)."""
    members = sorted(
        (t for t in group.trajectories if t.turns), key=lambda t: (len(t.turns), t.member)
    )
    return [t for t in members if t.success], [t for t in members if not t.success]


def wording(guidance: Guidance) -> str:
    """The text the teacher reads; empty when there is neither DO nor AVOID."""
    parts = {"DO": guidance.do, "AVOID": guidance.avoid}
    return "\n".join(
        f"{title}:\n" + "\n".join(f"- {entry}" for entry in entries)
        for title, entries in parts.items()
        if entries
    )


def prompt(
    group: Group, notes: Sequence[tuple[bool, Reflection]], *, most: int, longest: int
) -> str:
    """The question that contrasts `notes`: whether it succeeded, and what was learned from it."""
    goal = group.task.payload.get("goal")
    lines = [
        f"Attempt {i}, {'SUCCESS' if success else 'FAILURE'}: {note.summary} {note.skill}"
        for i, (success, note) in enumerate(notes, start=1)
    ]
    return _PROMPT.format(
        task=f"Task: {goal}\n" if goal else "", notes="\n".join(lines), most=most, longest=longest
    )


def create(config: Config) -> GroupGuidance:
    """The hint source.

    Raises:
        ConfigError: the endpoint cannot be asked as configured.
    """
    return GroupGuidance(config)
