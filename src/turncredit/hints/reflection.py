"""Skills written in hindsight about each finished trajectory: for the episode, and for turns.

An analyser reads a *completed* trajectory with its outcome and answers in JSON: a summary, one
skill for the episode (a workflow after a success, a rule of avoidance after a failure), and
sentences for the few turns that decided it. The teacher then judges a turn that has a sentence by
that sentence alone, inserted right before it (look "step"), and every other turn by the episode's
skill after the task line (look "episode"): critical first. With `additive` those turns are judged
by both. Form and routing after OPID; with the policy as its own analyser, after SEED. All prompts
are our own words.

What is inserted was written with the whole trajectory in view (`sees_future`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from turncredit.core.errors import ConfigError
from turncredit.core.looks import Ask, Demand, Insertion, Look
from turncredit.core.settings import setting
from turncredit.core.types import Group, Trajectory
from turncredit.hints import rules
from turncredit.hints.analysis import AnalyserConfig, Analyst, key_of, together
from turncredit.hints.answers import Reflection, read_reflection
from turncredit.hints.texts import ENDINGS, check_at_least, outcome, transcript

EPISODE, STEP = "episode", "step"  # names of the looks, so of the streams

_PROMPT = """\
Below is one finished attempt of an agent that acts in turns. Study it and write down what the \
next player of such a task should know.

{task}Outcome: {outcome} ({ending}).
The attempt has {count} turns. They are numbered from 0: the first is [turn 0], the last is \
[turn {last}].

{transcript}

Answer with one JSON object and nothing else, with exactly these three fields:
{{"episode_summary": "...", "episode_skill": "...", "step_skills": {{...}}}}
episode_summary: what happened, in one or two sentences.
episode_skill: {wanted}
step_skills: {steps}
Each text is one line of at most {longest} characters.
"""
_STEPS = """\
an object with at most {most} entries, one for each turn that decided the outcome. Its key is the \
turn's number as it stands in the brackets above, counted from 0, as a string; its value is one \
sentence of advice to the player at that very moment, knowing only what was seen up to then. Leave \
it empty when no single turn decided the outcome."""
_NO_STEPS = "the empty object {}."
_WANTED = {
    "success": "the way that led to the goal, as a short workflow others can follow.",
    "failure": "the rule that would have avoided this failure.",
}


@dataclass(frozen=True)
class Config(AnalyserConfig):
    """Who writes the skills, and which turn is judged by which."""

    routing: Literal["step_priority", "additive"] = setting(
        "step_priority", "turns with a skill of their own: judged by it alone, or by both"
    )
    max_step_skills: int = setting(5, "turns with a skill of their own, per trajectory")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(0, max_step_skills=self.max_step_skills)

    @property
    def demand(self) -> Demand:
        """A question about every trajectory; a look for each step skill, and one for the rest."""
        return self.asking(looks=1 + self.max_step_skills, per_member=1)


class Reflections:
    """The source. `prepare` has the skills of an update written; `looks` says where they stand."""

    sees_future = True

    def __init__(self, config: Config) -> None:
        self._config = config
        self._analyst = Analyst(config)
        self._written: dict[tuple[str, str, int, int], Reflection | None] = {}

    async def prepare(self, groups: Sequence[Group], ask: Ask) -> Mapping[str, float]:
        """Have every trajectory with turns reflected on, `reflection_concurrency` at a time.

        Args:
            groups: of one update.
            ask: the snapshot that sampled; used by `analyser = "policy"` only.

        Returns:
            Counts of this update, named reflection/...

        Raises:
            EndpointError: the service refuses, or answered nothing.
        """
        self._analyst.begin(ask)
        members = [t for group in groups for t in group.trajectories if t.turns]
        found = await together(
            reflect(t, self._analyst, self._config, most=self._config.max_step_skills)
            for t in members
        )
        self._written = dict(zip(map(key_of, members), found, strict=True))
        return {f"reflection/{name}": value for name, value in self._metrics().items()}

    def of(self, trajectory: Trajectory) -> Reflection | None:
        """What was written about it; None when nothing usable was.

        Raises:
            ConfigError: it was not among the groups last prepared.
        """
        if not trajectory.turns:
            return None
        try:
            return self._written[key_of(trajectory)]
        except KeyError:
            raise ConfigError(
                f"trajectory {trajectory.name} was not prepared: call prepare(groups, ask) first"
            ) from None

    def looks(self, group: Group) -> Sequence[Sequence[Look]]:
        """Per member: one look per step skill, then the episode's for the turns it judges."""
        return [self._looks(trajectory) for trajectory in group.trajectories]

    def _looks(self, trajectory: Trajectory) -> list[Look]:
        if (found := self.of(trajectory)) is None:
            return []
        looks = [Look((Insertion(text, k),), (k,), STEP) for k, text in found.steps.items()]
        turns = range(len(trajectory.turns))
        if self._config.routing == "step_priority":
            turns = [k for k in turns if k not in found.steps]
        if turns:
            looks.append(Look((Insertion(found.skill, "opening"),), tuple(turns), EPISODE))
        return looks

    def _metrics(self) -> Mapping[str, float]:
        written = [found for found in self._written.values() if found is not None]
        steps = sum(len(found.steps) for found in written)
        return {
            **self._analyst.spent(),
            "trajectories": float(len(self._written)),
            "without_skill": float(len(self._written) - len(written)),
            "step_skills_mean": steps / len(written) if written else 0.0,
        }


async def reflect(
    trajectory: Trajectory, analyst: Analyst, config: AnalyserConfig, *, most: int
) -> Reflection | None:
    """What the analyser has to say; None when none of its answers is usable.

    Args:
        trajectory: with at least one turn.
        analyst: takes the question.
        config: who analyses, and the bounds of what is read and written.
        most: step skills. A turn that was left out of the prompt can have none.
    """
    longest = config.skill_chars
    if config.analyser == "rules":
        return rules.reflect(trajectory, most=most, longest=longest)
    shown = transcript(trajectory, config.reflection_chars)
    if not shown.shown:  # not one turn fits: nothing to learn from, and nothing spent
        return None
    read = partial(read_reflection, turns=shown.shown, most=most, longest=longest)
    return await analyst.ask(prompt(trajectory, shown.text, most=most, longest=longest), read)


def prompt(trajectory: Trajectory, text: str, *, most: int, longest: int) -> str:
    """The question about one trajectory, whose turns stand in `text`."""
    goal = trajectory.task.payload.get("goal")
    count = len(trajectory.turns)
    return _PROMPT.format(
        task=f"Task: {goal}\n" if goal else "",
        outcome=outcome(trajectory).upper(),
        ending=ENDINGS[trajectory.stop],
        count=count,
        last=count - 1,
        transcript=text,
        wanted=_WANTED[outcome(trajectory)],
        steps=_STEPS.format(most=most) if most else _NO_STEPS,
        longest=longest,
    )


def create(config: Config) -> Reflections:
    """The hint source.

    Raises:
        ConfigError: the endpoint cannot be asked as configured.
    """
    return Reflections(config)
