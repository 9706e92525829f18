import asyncio
import contextlib

from forebay.streams_metadata import HostInfo
from forebay_router.cluster.cluster import Cluster
from forebay_router.cluster.discovery import Discovery
from forebay_router.cluster.seeds import Seeds, resolve
from forebay_router.upstream.opener import credentials_of
from tests.support.cluster import free_port, running_cluster, wait_until

NAME = HostInfo("workers.test", 80)


class Names:
    """A name service whose answers a test changes."""

    def __init__(self, **addresses: list[str]) -> None:
        self.addresses = addresses
        self.requested: list[HostInfo] = []

    async def resolve(self, seed: HostInfo) -> list[HostInfo]:
        self.requested.append(seed)
        if seed.host not in self.addresses:
            raise OSError("no such name")
        return [HostInfo(address, seed.port) for address in self.addresses[seed.host]]


def live(cluster: Cluster) -> set[str]:
    return {str(host) for host, worker in list(cluster.workers.items()) if worker.live}


def at(*addresses: str, port: int = 80) -> set[HostInfo]:
    return {HostInfo(address, port) for address in addresses}


async def test_a_name_stands_for_every_address_that_it_has_now():
    names = Names(**{"workers.test": ["10.0.0.1", "10.0.0.2", "fd00::1"]})
    seeds = Seeds([NAME, HostInfo("10.9.9.9", 81)], names.resolve)
    assert seeds.addresses == at("10.9.9.9", port=81)
    assert await seeds.resolve(NAME)
    assert seeds.addresses == at("10.0.0.1", "10.0.0.2", "fd00::1") | at("10.9.9.9", port=81)
    names.addresses["workers.test"] = ["10.0.0.2", "10.0.0.3"]
    assert await seeds.resolve(NAME)
    assert seeds.addresses == at("10.0.0.2", "10.0.0.3") | at("10.9.9.9", port=81)


async def test_a_name_that_fails_stands_for_what_it_did():
    names = Names(**{"workers.test": ["10.0.0.1"]})
    seeds = Seeds([NAME], names.resolve)
    await seeds.resolve(NAME)
    del names.addresses["workers.test"]
    assert not await seeds.resolve(NAME)
    assert seeds.addresses == at("10.0.0.1")


async def test_addresses_are_not_looked_up():
    names = Names()
    seeds = Seeds([HostInfo("10.0.0.1", 1), HostInfo("::1", 2)], names.resolve)
    await seeds.follow(lambda: None)
    assert names.requested == []
    assert seeds.addresses == {HostInfo("10.0.0.1", 1), HostInfo("::1", 2)}


async def test_one_name_that_hangs_holds_up_no_other():
    found = asyncio.Event()

    async def hang_on_one(seed: HostInfo) -> list[HostInfo]:
        if seed == NAME:
            await asyncio.Event().wait()
        return [HostInfo("10.0.0.7", seed.port)]

    seeds = Seeds([NAME, HostInfo("quick.test", 80)], hang_on_one)
    following = asyncio.create_task(seeds.follow(found.set))
    async with asyncio.timeout(5):
        await found.wait()
    assert seeds.addresses == at("10.0.0.7")
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following


async def test_the_systems_resolver_knows_this_machine():
    assert HostInfo("127.0.0.1", 7) in await resolve(HostInfo("localhost", 7))


async def test_workers_behind_one_name_are_all_found(tmp_path):
    # In groups of their own they do not tell of each other.
    port = free_port()
    with running_cluster(tmp_path) as cluster:
        workers = [
            cluster.start_worker(f"127.0.0.{i}:{port}", "--group", f"sqlite:///{tmp_path}/group-{i}.db")
            for i in (1, 2)
        ]
        names = Names(**{"workers.test": ["127.0.0.1", "127.0.0.2"]})
        found = Cluster(5000)
        seeds = Seeds([HostInfo("workers.test", port)], names.resolve)
        discovery = Discovery(found, seeds, 50, credentials_of(None))
        await discovery.start()
        try:
            await asyncio.to_thread(wait_until, lambda: live(found) == set(workers), "both workers known")
        finally:
            await discovery.stop()


def test_a_router_is_led_by_a_real_name(tmp_path):
    with running_cluster(tmp_path) as cluster:
        worker = cluster.start_worker()
        router = cluster.start_router("--seeds", f"localhost:{worker.rpartition(':')[2]}")
        cluster.wait_settled(router, replicas=1)
