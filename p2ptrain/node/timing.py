"""All deadlines of a node, derived from the one that its owner may set.

``stall_s`` says how long something may be silent before it is given up. The default is
for a LAN; over a worse network everything else grows along with it. What was measured
stretches these further: probe time-outs follow round trips, a node that is busy itself
trusts itself less, a view's stall limit follows its steps, and whatever still moves is
slow, not dead.
"""

from dataclasses import dataclass, replace

from p2ptrain.core.consensus import ConsensusConfig
from p2ptrain.core.membership import MembershipConfig
from p2ptrain.core.session import SessionConfig

SILENT_MIN_S = 2.5  # workers speak once a second
USUAL_S = 3.0  # the ``stall_s`` that the cores' own defaults are for


@dataclass(frozen=True, slots=True)
class Timing:
    """The cores' times."""

    membership: MembershipConfig
    consensus: ConsensusConfig
    session: SessionConfig
    ring_s: float

    def figures(self) -> dict[str, float]:
        """Return the deadlines that a person may want to know, in seconds."""
        m, c, s = self.membership, self.consensus, self.session
        suspect = m.probe_timeout_max_s + m.indirect_timeout_s
        seconds = {
            "ring_s": self.ring_s,
            "suspect_s": m.probe_interval_s + suspect,
            "dead_s": m.probe_interval_s + suspect + m.suspicion_min_s,
            "election_s": c.election_max_s,
            "silent_s": s.silent_s,
            "no_step_s": s.stall_s,
        }
        return {name: round(value, 2) for name, value in seconds.items()}


def derive(stall_s: float) -> Timing:
    """Return all times for a ``stall_s`` in seconds, in the defaults' ratios."""
    scale = stall_s / USUAL_S
    m, c, s = MembershipConfig(), ConsensusConfig(), SessionConfig()
    return Timing(
        membership=replace(
            m,
            probe_timeout_min_s=m.probe_timeout_min_s * scale,
            probe_timeout_max_s=m.probe_timeout_max_s * scale,
            indirect_timeout_s=m.indirect_timeout_s * scale,
            suspicion_min_s=m.suspicion_min_s * scale,
        ),
        consensus=replace(
            c,
            heartbeat_s=c.heartbeat_s * scale,
            election_min_s=c.election_min_s * scale,
            election_max_s=c.election_max_s * scale,
            lost_s=c.lost_s * scale,
        ),
        session=replace(
            s,
            gather_s=s.gather_s * scale,
            silent_s=max(s.silent_s * scale, SILENT_MIN_S),
            settle_s=s.settle_s * scale,
            gone_s=s.gone_s * scale,
            linger_s=s.linger_s * scale,
            stall_s=s.stall_s * scale,
        ),
        ring_s=stall_s,
    )
