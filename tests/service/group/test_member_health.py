"""How long an obstacle has to last, and to be gone."""

import pytest

from forebay_worker.group.member_health import HealthMonitor, MemberHealth

EVICT_AFTER_MS = 60_000.0


@pytest.fixture
def monitor() -> HealthMonitor:
    return HealthMonitor(EVICT_AFTER_MS)


def test_worker_without_a_fault_is_healthy_after_boot(monitor):
    assert monitor.health(None, 5.0) is MemberHealth.HEALTHY


def test_fault_degrades_at_once_and_evicts_after_the_delay(monitor):
    assert monitor.health("full", 1_000) is MemberHealth.DEGRADED
    assert monitor.health("full", 1_000 + EVICT_AFTER_MS - 1) is MemberHealth.DEGRADED
    assert monitor.health("full", 1_000 + EVICT_AFTER_MS) is MemberHealth.EVICTED


def test_brief_recovery_between_tries_stays_degraded(monitor):
    monitor.health("full", 1_000)
    assert monitor.health(None, 10_000) is MemberHealth.DEGRADED
    assert monitor.health("full", 10_500) is MemberHealth.DEGRADED
    assert monitor.health(None, 1_000 + EVICT_AFTER_MS) is MemberHealth.HEALTHY


def test_what_comes_back_later_is_counted_from_then_on(monitor):
    monitor.health("full", 1_000)
    assert monitor.health(None, 11_000) is MemberHealth.HEALTHY
    assert monitor.health("full", 1_000 + EVICT_AFTER_MS) is MemberHealth.DEGRADED
