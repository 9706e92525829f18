import pytest

from forebay.task_ids import TaskId, TopicPartition


def test_a_task_id_is_written_and_read_as_ordinal_and_partition() -> None:
    assert str(TaskId(2, 14)) == "2_14"
    assert TaskId.parse("2_14") == TaskId(2, 14)
    assert TaskId.parse("0_0") == TaskId(0, 0)


@pytest.mark.parametrize(
    "text", ["", "2", "2_", "_1", "02_1", "2_01", "-1_0", "2_1 ", "2_1_3", "a_b", "2-1", "٢_١"]
)
def test_what_is_no_task_id_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="not a task id") as caught:
        TaskId.parse(text)
    assert repr(text) in str(caught.value)


def test_tasks_sort_by_number_not_by_text() -> None:
    assert sorted([TaskId(10, 0), TaskId(2, 14), TaskId(2, 3)]) == [TaskId(2, 3), TaskId(2, 14), TaskId(10, 0)]


def test_a_topic_partition_is_written_as_kafka_writes_it() -> None:
    assert str(TopicPartition("flights-delays-changelog", 3)) == "flights-delays-changelog-3"
