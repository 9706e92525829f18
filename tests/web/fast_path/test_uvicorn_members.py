"""What the protocols use of uvicorn's own, which promises none of it: each member is named here, and is there."""

from __future__ import annotations

import ast
import asyncio
import inspect
from types import ModuleType

import uvicorn
from uvicorn.lifespan.on import LifespanOn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from forebay_web import server
from forebay_web.fast_path import protocol, slow_path

OF_THE_PROTOCOL = {
    # State.
    *(
        "client",
        "config",
        "connections",
        "cycle",
        "flow",
        "headers",
        "loop",
        "parser",
        "pipeline",
        "scheme",
        "server_state",
    ),
    *("timeout_keep_alive", "timeout_keep_alive_task", "transport"),
    # Called, or called by uvicorn.
    *("_start_asgi_task", "_unset_keepalive_if_required", "connection_lost", "connection_made", "data_received"),
    *("eof_received", "on_headers_complete", "on_message_begin", "on_message_complete", "on_response_complete"),
    *("pause_writing", "resume_writing", "shutdown", "timeout_keep_alive_handler"),
}
OF_ITS_CYCLE = {"disconnected", "message_event", "response_complete", "scope"}
OF_ITS_FLOW = {"pause_reading", "write_paused"}
OF_THE_SERVER = {
    *("capture_signals", "config", "force_exit", "handle_exit", "lifespan", "server_state", "servers"),
    *("should_exit", "shutdown", "started", "startup"),
}


async def uvicorns() -> HttpToolsProtocol:
    async def application(scope: object, receive: object, send: object) -> None:
        """Not called."""

    config = uvicorn.Config(application, http=HttpToolsProtocol)
    config.load()
    return HttpToolsProtocol(config, ServerState(), {}, asyncio.get_running_loop())


def used(module: ModuleType, *classes: str) -> tuple[set[str], set[str]]:
    """The members that classes use of themselves or their base, and those that they define."""
    names, defined = set(), set()
    for tree in ast.parse(inspect.getsource(module)).body:
        if not isinstance(tree, ast.ClassDef) or tree.name not in classes:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                defined.add(node.name)
            elif isinstance(node, ast.AnnAssign | ast.Assign):
                targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
                defined |= {each.id for each in targets if isinstance(each, ast.Name)}
            if isinstance(node, ast.Attribute) and (
                (isinstance(node.value, ast.Name) and node.value.id == "self")
                or (isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()")
            ):
                names.add(node.attr)
    return names, defined


async def test_used_protocol_members_are_listed_and_exist():
    theirs = await uvicorns()
    names, defined = set(), set()
    for module, class_name in ((slow_path, "SlowPathProtocol"), (protocol, "FastPathProtocol")):
        of_module = used(module, class_name)
        names |= of_module[0] | of_module[1]
        defined |= of_module[1]
    assert {
        name for name in names if hasattr(theirs, name) and not name.startswith("__")
    } - OF_THE_PROTOCOL == set()
    source = inspect.getsource(HttpToolsProtocol)
    assert {
        name for name in OF_THE_PROTOCOL if not hasattr(theirs, name) and f"self.{name}" not in source
    } == set()
    assert OF_THE_PROTOCOL - {"config"} <= names, "something is named that is no longer used"


async def test_what_is_used_of_its_parts_is_there():
    theirs = await uvicorns()
    cycle = set(inspect.signature(RequestResponseCycle.__init__).parameters)
    source = inspect.getsource(RequestResponseCycle.__init__)
    assert {name for name in OF_ITS_CYCLE if name not in cycle and f"self.{name}" not in source} == set()
    theirs.connection_made(_Transport())
    assert {name for name in OF_ITS_FLOW if not hasattr(theirs.flow, name)} == set()
    theirs.connection_lost(None)


async def test_used_server_members_are_listed_and_exist():
    theirs = uvicorn.Server((await uvicorns()).config)
    theirs.lifespan = LifespanOn(theirs.config)
    names, defined = used(server, "HttpServer")
    assert {
        name for name in names | defined if hasattr(theirs, name) and not name.startswith("__")
    } == OF_THE_SERVER - {"servers"}
    assert "self.servers" in inspect.getsource(uvicorn.Server)


class _Transport(asyncio.Transport):
    """A connection that carries nothing."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def close(self) -> None:
        """Nothing to close."""
