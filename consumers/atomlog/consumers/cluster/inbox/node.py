"""The inboxes of a node that owns partitions: requests go to its own owners, or to the node that owns the space."""

from atomlog.consumers.cluster.inbox.inboxes import Inboxes
from atomlog.consumers.cluster.inbox.requests import InboxRequest, to_message
from atomlog.consumers.cluster.inbox.worker import Surroundings
from atomlog.consumers.cluster.node import KernelNode
from atomlog.consumers.parts import Parts
from atomlog.consumers.writing import outcome_from, result_from
from atomlog.kernel import model
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka.client import KafkaClient


class NodeWrites:
    """Implements `Writes` by a node."""

    def __init__(self, node: KernelNode) -> None:
        self._node = node

    async def write(self, request: InboxRequest, principal: str) -> model.WriteResult:
        if self._node.owns_space(request.parsed.space):
            try:
                return await self._node.owners.write(request.parsed, principal)
            except AtomlogError as error:
                if error.code != "NOT_OWNER":
                    raise
        return result_from(await self._node.answer({"op": "write", **to_message(request, principal)}))

    async def outcome(self, space: str, key: str, principal: str) -> model.Outcome:
        message = {"op": "outcome", "space": space, "key": key, "principal": principal}
        return outcome_from(await self._node.answer(message))


def inboxes_of(node: KernelNode, parts: Parts, client: KafkaClient, prefix: str) -> Inboxes:
    """Works through the inboxes whose partitions are this node's while it owns them; `run` it beside the node."""
    around = Surroundings(
        client=client,
        writes=NodeWrites(node),
        partitions=parts.config.partitions,
        settings=parts.settings,
        clock=parts.machine.clock,
        say=parts.on_event,
    )
    return Inboxes(around, prefix, node.owns)
