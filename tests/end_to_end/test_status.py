"""``forebay status --check``, as a script that waits for a deployment uses it."""

from tests.installed import forebay


def check(url, *bounds):
    done = forebay("status", "--check", *bounds, "--url", f"http://{url}")
    assert done.returncode in (0, 1), done.stderr
    assert (done.returncode == 0) == (done.stderr == "")
    return done.stderr.splitlines()


def test_partitions_without_an_active_within_bounds_are_named(cluster):
    router = cluster.start_router("--seeds", cluster.reserve_address(), ready=False)
    assert check(router) == ["No store is known."]
