"""The master's tasks; each ends with an item for its inbox."""

from p2ptrain.actors.master.admission import Admission
from p2ptrain.actors.master.tasks import Internal, Item, Ready, Tasks, Wake
from p2ptrain.core.session import AskHold, Facts, Held
from p2ptrain.errors import NoMasterError
from p2ptrain.messages.asks import HoldAnswer, HoldAsk
from p2ptrain.messages.record import SessionStatus, SetStatus
from p2ptrain.runtime.inbox import Inbox
from tests.actors.fakes import ME, PEER
from tests.actors.master.kit import SESSION, Kit


class Lone:
    """Tasks with an inbox that nobody else reads."""

    def __init__(self) -> None:
        self.kit = Kit()
        self.inbox: Inbox[Item] = Inbox("test", 10)
        admission = Admission(self.kit.ports)
        self.tasks = Tasks(self.kit.ports, admission, self.inbox.ref)


async def test_a_proposal_wakes_the_loop_whatever_comes_of_it() -> None:
    lone = Lone()
    lone.kit.record()
    command = SetStatus(SESSION, 1, SessionStatus.PAUSED, "why", 0)
    await lone.tasks.propose(command)
    assert lone.inbox.receive_nowait() == Wake()
    lone.kit.log.fails = NoMasterError("lost")
    await lone.tasks.propose(command)
    assert lone.inbox.receive_nowait() == Wake()
    assert lone.kit.log.commands.count(command) == 1


async def test_a_hold_is_answered_with_the_nodes_words() -> None:
    lone = Lone()
    blobs = (lone.kit.data,)
    lone.kit.post.answers = lambda _to, _message: HoldAnswer("the disk is full")
    await lone.tasks.ask_hold(SESSION, AskHold(PEER, blobs, (ME,)))
    assert lone.kit.post.asked == [(PEER, HoldAsk(blobs, (ME,)))]
    held = Held(PEER, blobs, "the disk is full")
    assert lone.inbox.receive_nowait() == Internal(SESSION, held)


async def test_a_node_that_does_not_answer_holds_nothing() -> None:
    lone = Lone()
    lone.kit.post.answers = lone.kit.post._nobody
    await lone.tasks.ask_hold(SESSION, AskHold(PEER, (lone.kit.data,), (ME,)))
    item = lone.inbox.receive_nowait()
    assert isinstance(item, Internal)
    assert isinstance(item.event, Held)
    assert "does not answer" in item.event.problem


async def test_facts_are_read_from_the_spec() -> None:
    lone = Lone()
    lone.kit.record()
    await lone.tasks.read(3, lone.kit.log.registry.sessions[SESSION])
    facts = Facts(parts=1, steps=5, epochs=2, step_samples=4)
    assert lone.inbox.receive_nowait() == Ready(3, SESSION, facts, "")


async def test_bytes_that_are_no_spec_are_a_problem() -> None:
    lone = Lone()
    lone.kit.record(blob=lone.kit.blobs.add(b"\xff\x00"))
    await lone.tasks.read(3, lone.kit.log.registry.sessions[SESSION])
    item = lone.inbox.receive_nowait()
    assert isinstance(item, Ready)
    assert item.facts is None
    assert item.problem
