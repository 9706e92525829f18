"""What the group uses of aiokafka's own, which promises none of it: each member is named here, and is there."""

from __future__ import annotations

import ast
import inspect

from aiokafka import AIOKafkaConsumer
from aiokafka.consumer.group_coordinator import GroupCoordinator

from forebay_worker.group.kafka import group_consumer

OF_THE_COORDINATOR = {
    "_perform_assignment": True,
    "_send_req": True,
    "_start_heartbeat_task": False,
    "_stop_heartbeat_task": True,
}
"""By name, whether it is awaited."""


def test_private_members_of_aiokafka_are_named_and_there():
    tree = ast.parse(inspect.getsource(group_consumer))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and isinstance(node.value, ast.Name)
        and node.value.id == "coordinator"
    }
    assert used == OF_THE_COORDINATOR.keys()
    for name, is_awaited in OF_THE_COORDINATOR.items():
        assert inspect.iscoroutinefunction(getattr(GroupCoordinator, name)) == is_awaited, name
    assert "self._coordinator" in inspect.getsource(AIOKafkaConsumer)
