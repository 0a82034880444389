"""Who votes: the next single change of the record's configuration, if one is due.

Every member that is alive becomes a learner. Voters are kept odd in number (one, three
or five), for an even number survives no more deaths than the odd one below it and needs
one more vote: with two nodes one votes, and the other one's death costs nothing. A
learner is promoted when it has been alive for a while and has the log. A dead voter
keeps its seat until it has been dead for long and a learner can take it. Members that
left are removed. One change at a time (Ongaro 2014, section 4.1).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from p2ptrain.ids import NodeId
from p2ptrain.messages.consensus import Config

LEARNERS_MAX = 256


@dataclass(frozen=True, slots=True)
class Situation:
    """What the choice depends on.

    Args:
        me: the leader.
        config: now in force.
        alive: seconds since each member that is alive came.
        gone: members that left for good.
        dead_s: seconds since each voter that is not alive was last seen.
        ready: learners that have the log.
        leaving: the leader itself is about to leave.
    """

    me: NodeId
    config: Config
    alive: Mapping[NodeId, float]
    gone: frozenset[NodeId]
    dead_s: Mapping[NodeId, float]
    ready: frozenset[NodeId]
    leaving: bool


@dataclass(frozen=True, slots=True)
class Rules:
    """Bounds of the choice; see ``ConsensusConfig``."""

    voters_max: int
    promote_after_s: float
    replace_after_s: float


def next_config(now: Situation, rules: Rules) -> Config | None:
    """Return the configuration to change to, or None to leave it."""
    config = now.config
    for node in (*config.learners, *config.voters):
        if node in now.gone and node != now.me:
            return _without(config, node)
    for node in sorted(now.alive):
        known = node in config.voters or node in config.learners
        if not known and len(config.learners) < LEARNERS_MAX:
            return replace(config, learners=(*config.learners, node))
    return _balanced(now, rules)


def _balanced(now: Situation, rules: Rules) -> Config | None:
    config = now.config
    spares = sorted(
        node
        for node in config.learners
        if node in now.ready and now.alive.get(node, -1) >= rules.promote_after_s
    )
    if now.leaving and len(config.voters) == 1:
        return _promoted(config, spares[0]) if spares else None
    wanted = min(rules.voters_max, len(config.voters) + len(spares))
    wanted -= 1 - wanted % 2
    if len(config.voters) < wanted:
        return _promoted(config, spares[0])
    surplus = [node for node in config.voters if node != now.me]
    if len(config.voters) > max(wanted, 1) and surplus:
        return _demoted(config, max(surplus, key=lambda n: (_death(now, n), n)))
    dead = [n for n in surplus if _death(now, n) >= rules.replace_after_s]
    if dead and spares:
        return _demoted(config, max(dead, key=lambda n: (_death(now, n), n)))
    return None


def _death(now: Situation, node: NodeId) -> float:
    return now.dead_s.get(node, 0.0)


def _without(config: Config, node: NodeId) -> Config:
    return Config(
        tuple(n for n in config.voters if n != node),
        tuple(n for n in config.learners if n != node),
    )


def _promoted(config: Config, node: NodeId) -> Config:
    rest = _without(config, node)
    return replace(rest, voters=(*rest.voters, node))


def _demoted(config: Config, node: NodeId) -> Config:
    rest = _without(config, node)
    return replace(rest, learners=(*rest.learners, node))
