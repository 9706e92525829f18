from forebay.routing.hedging import HedgeBudget, HedgeDelay


def test_the_delay_follows_answer_times_within_its_bounds():
    delay = HedgeDelay()
    for _ in range(5000):
        delay.observe(1.0)
    quick = delay.delay_ms
    for _ in range(500):
        delay.observe(60.0)
    assert 8 <= quick < delay.delay_ms <= 250


def test_at_most_a_tenth_of_requests_is_hedged():
    budget = HedgeBudget()
    spent = 0
    for now_ms in range(0, 100_000, 5):
        budget.earn(float(now_ms))
        spent += budget.spend()
    requests = 100_000 / 5
    assert spent <= 0.1 * requests + 200 + 10


def test_a_burst_covers_a_second_of_requests():
    budget = HedgeBudget()
    for now_ms in range(0, 20_000, 2):
        budget.earn(float(now_ms))
    allowed = sum(budget.spend() for _ in range(10_000))
    assert 450 <= allowed <= 500
