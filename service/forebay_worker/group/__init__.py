"""The worker group: which workers are alive, which one leads, and which tasks each holds.

A worker is declared dead by the broker where the group is Kafka's, and with SQLite once its lease has ended
(``sqlite.lease_database``). The leader then divides its tasks among the others (``group_member``), and keeps its
place for a while (``rebuild_delay``). Routers conclude sooner that one cannot be reached, for themselves alone
(``forebay_router.cluster.worker_view``).
"""
