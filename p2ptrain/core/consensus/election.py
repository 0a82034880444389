"""Elections: terms, votes and roles; see ``machine``."""

from p2ptrain.core.consensus.leading import Leading
from p2ptrain.core.consensus.types import Role
from p2ptrain.errors import PeerError
from p2ptrain.ids import ClusterId, NodeId
from p2ptrain.messages.consensus import Vote, VoteReply


class Election(Leading):
    """Standing for election, voting, and following whoever won."""

    def _stand(self, *, transfer: bool) -> None:
        """Ask whether we would be elected; when asked to stand, stand at once."""
        self._restart_timer()
        if self.me not in self.config.voters:
            self._become(Role.FOLLOWER, None)
            return
        self._votes = {self.me}
        self._standing_pre = not transfer
        self._become(Role.CANDIDATE, None)
        if transfer:
            self._begin_term(transfer=True)
        else:
            self._ask_votes(self.term + 1, transfer=False)
        self._count_votes()

    def _begin_term(self, *, transfer: bool) -> None:
        self.term += 1
        self.vote = self.me
        self._dirty_term = True
        self._standing_pre = False
        self._votes = {self.me}
        self._become(Role.CANDIDATE, None)
        self._ask_votes(self.term, transfer=transfer)

    def _ask_votes(self, term: int, *, transfer: bool) -> None:
        log = self.log
        ask = Vote(term, log.last, log.last_term, self._standing_pre, transfer)
        for node in self.config.voters:
            if node != self.me:
                self._send(node, ask)

    def _asked_to_vote(self, sender: NodeId, ask: Vote) -> None:
        heard = self._now - self._heard_at < self.settings.election_min_s
        follows = self.role is Role.LEADER or (self.leader is not None and heard)
        if follows and not ask.transfer:
            if ask.term > self.term:
                return  # we hear a leader: whoever does not is cut off or restarted
            self._send(sender, VoteReply(self.term, ask.pre, granted=False))
            return
        if not ask.pre and ask.term > self.term:
            self._follow(ask.term, None)
        mine = (self.log.last_term, self.log.last)
        fresh = (ask.last_term, ask.last_index) >= mine
        if ask.pre:
            granted = fresh and ask.term > self.term
        else:
            granted = fresh and ask.term == self.term and self.vote in {None, sender}
            if granted:
                self._dirty_term = self._dirty_term or self.vote is None
                self.vote = sender
                self._restart_timer()
        term = ask.term if granted else self.term
        self._send(sender, VoteReply(term, ask.pre, granted))

    def _vote_came(self, sender: NodeId, reply: VoteReply) -> None:
        if reply.term > self.term and not (reply.pre and reply.granted):
            self._follow(reply.term, None)
            return
        wanted = self.term + 1 if self._standing_pre else self.term
        fits = reply.pre == self._standing_pre and reply.term == wanted
        if self.role is Role.CANDIDATE and fits and reply.granted:
            self._votes.add(sender)
            self._count_votes()

    def _count_votes(self) -> None:
        voters = set(self.config.voters)
        if 2 * len(self._votes & voters) <= len(voters):
            return
        if self._standing_pre:
            self._begin_term(transfer=False)
            self._count_votes()
        else:
            self._lead()

    def _follows(self, sender: NodeId, term: int, cluster: ClusterId) -> bool:
        """Accept the sender as leader; False (and an answer) for a stale one.

        Raises:
            PeerError: it leads another cluster, or a second leader in this term.
        """
        if self.cluster is not None and self.cluster != cluster:
            raise PeerError(f"{sender} leads cluster {cluster!r:.40}")
        if term < self.term:
            self._refuse_append(sender)
            return False
        if term == self.term and self.role is Role.LEADER:
            raise PeerError(f"{sender} also leads term {term}")
        if self.cluster is None:
            self.cluster = cluster
            self._dirty_cluster = True
        self._follow(term, sender)
        self._heard_at = self._now
        self._restart_timer()
        return True

    def _lost(self, node: NodeId) -> None:
        """Neither wait for a leader that is gone, nor refuse to vote for its sake.

        If it lives after all, its next message takes this back.
        """
        if self.role is Role.FOLLOWER and node == self.leader:
            self._heard_at = float("-inf")
            self._stand_soon()

    def _bootstrap(self, cluster: ClusterId) -> None:
        if self.cluster is None:
            self.cluster = cluster
            self._dirty_cluster = True
            self._found()
            self._stand(transfer=False)
