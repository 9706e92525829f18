import dataclasses
from typing import Any

import pytest

from forebay.partitioning import Murmur2Partitioner
from forebay.store_spec import StoreSpec
from tests.support.topologies import topology


def test_a_store_finds_its_codecs_key_layout_and_partitioner() -> None:
    spec = topology().stores["departures"]
    assert (spec.key_codec.name, spec.value_codec.name) == ("int64", "double")
    assert (spec.stored_keys.layout.name, spec.stored_keys.codec) == ("window", spec.key_codec)
    assert spec.stream_partitioner is None
    assert isinstance(topology().stores["carrier_delays"].stream_partitioner, Murmur2Partitioner)


@pytest.mark.parametrize("name", ["carrier_delays", "departures", "tails", "fleet"])
def test_a_store_specification_survives_its_document(name: str) -> None:
    spec = topology().stores[name]
    document = spec.document()
    assert None not in document.values()
    assert StoreSpec.from_document(document) == spec
    assert StoreSpec.from_document({**document, "from_a_later_version": 1}) == spec


def test_every_field_of_a_store_survives_its_document() -> None:
    fields = [field.name for field in dataclasses.fields(StoreSpec) if field.name != "spark_state"]
    filled: dict[str, Any] = {name: index for index, name in enumerate(fields, 1)}
    assert StoreSpec.from_document(filled).document() == filled
