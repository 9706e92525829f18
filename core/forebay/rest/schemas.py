"""OpenAPI schemas of both tiers' answers. A later version may add members, never remove any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.store_kinds import STORE_KINDS, StoreKind

Schema = dict[str, Any]


def _object(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> Schema:
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
    }


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _enum(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


_STRING: Schema = {"type": "string"}
_BOOLEAN: Schema = {"type": "boolean"}
_NATURAL: Schema = {"type": "integer", "minimum": 0}
_FIGURE: Schema = {"type": ["integer", "null"], "minimum": 0}
_NUMBER: Schema = {"type": "integer"}
_HOST: Schema = {"type": "string", "description": "host:port"}
_HOST_OR_NONE: Schema = {"type": ["string", "null"]}

LAG_SCHEMA = _object({"record_lag": _FIGURE, "time_lag_ms": _FIGURE, "age_ms": _FIGURE})
ROLE_SCHEMA = _enum("active", "restoring", "standby")
_PROVENANCE = {
    "partition": _NATURAL,
    "position": _STRING,
    "role": ROLE_SCHEMA,
    "host": _HOST,
    "lag": LAG_SCHEMA,
}
KEY_SCHEMA = _object({"store": _STRING, "key": {}, "value": {}, **_PROVENANCE})
PROBLEM_REFERENCE: Schema = {"$ref": "#/components/schemas/Problem"}
BATCH_SCHEMA = _object(
    {"results": _array({"oneOf": [KEY_SCHEMA, _object({"key": {}, "problem": PROBLEM_REFERENCE})]})}
)


def list_schema(kind: StoreKind, keyed: bool) -> Schema:
    """The schema of a list answer: for one key, or for all."""
    item = {**({} if keyed else {"key": {}}), **dict.fromkeys(kind.time_names, _NUMBER), "value": {}}
    return _object(
        {
            "store": _STRING,
            **({"key": {}} if keyed else {}),
            kind.items: _array(_object(item)),
            "next": {
                "type": ["string", "null"],
                "description": "The cursor of the next page, null at the end. A list may end before its limit, "
                "even without an item, if few of the entries scanned match.",
            },
            "complete": _BOOLEAN,
            "lag": LAG_SCHEMA,
            "partitions": _array(_object(_PROVENANCE)),
        },
        {"missing": _array(_NATURAL)},
    )


STORE_SCHEMA = _object(
    {
        "name": _STRING,
        "kind": _enum(*STORE_KINDS),
        "key": _STRING,
        "value": _STRING,
        "partitioner": _STRING,
        "topic": _STRING,
        "partitions": _NATURAL,
        "supplier": _STRING,
        "external": _BOOLEAN,
        "on_bad_value": _enum("stop", "skip"),
        "accept_uncompacted": _BOOLEAN,
    },
    {
        **{duration: _NATURAL for kind in STORE_KINDS.values() for duration in kind.required},
        "latest_by": _STRING,
        "max_record_lag": _NATURAL,
        "max_time_lag_ms": _NATURAL,
        "max_age_ms": _NATURAL,
    },
)
_APPLICATION = {"application_id": _STRING, "topology": _STRING}
STORES_SCHEMA = _object({**_APPLICATION, "stores": _array(STORE_SCHEMA)})

_TOPIC_PARTITIONS: Schema = {
    **_array({**_array({"type": ["string", "integer"]}), "minItems": 2, "maxItems": 2}),
    "description": "[topic, partition] each",
}
_STREAMS_METADATA = _object(
    {
        "host": _HOST,
        "active_store_names": _array(_STRING),
        "active_topic_partitions": _TOPIC_PARTITIONS,
        "standby_store_names": _array(_STRING),
        "standby_topic_partitions": _TOPIC_PARTITIONS,
        "process_ids": {
            **_array(_STRING),
            "description": "The processes that the group knows at this host: two while one replaces another.",
        },
    }
)
_GENERATION = {"incarnation": _NUMBER, "generation": _NUMBER}
METADATA_SCHEMA = _object({**_APPLICATION, **_GENERATION, "hosts": _array(_STREAMS_METADATA)})
STORE_METADATA_SCHEMA = _object(
    {"store": _STRING, "active": _array(_STREAMS_METADATA), "standby": _array(_STREAMS_METADATA)}
)
KEY_METADATA_SCHEMA = _object(
    {
        "store": _STRING,
        "key": {},
        "active_host": _HOST_OR_NONE,
        "standby_hosts": _array(_HOST),
        "partition": _NATURAL,
    }
)

_REPLICA_SCHEMA = _object(
    {
        "store": _STRING,
        "partition": _NATURAL,
        "task": _STRING,
        "role": ROLE_SCHEMA,
        "host": _HOST,
        "offset": {**_NATURAL, "description": "The next offset to apply."},
        "end_offset": {**_FIGURE, "description": "The end of what can be read; on Kafka the last stable offset."},
        "high_watermark": {**_FIGURE, "description": "The end of all that is written, in open transactions too."},
        "open_transaction_records": {
            **_FIGURE,
            "description": "Offsets from the end to the high watermark, which open transactions hold back.",
        },
        "restored": {**_BOOLEAN, "description": "Whether an end of the log was ever reached."},
        **LAG_SCHEMA["properties"],
    },
    {
        "failure": {**_STRING, "description": "Why records cannot be applied, or the log cannot be read."},
        "restored_records": _NATURAL,
        "restored_records_per_second": _NATURAL,
        "restore_seconds_left": {**_FIGURE, "description": "At the pace so far; null until that is known."},
    },
)
LAGS_SCHEMA = _object({"lags": _array(_REPLICA_SCHEMA)})

_IDENTITY = {
    "application_id": {"type": ["string", "null"]},
    "process_id": _STRING,
    "incarnation": _NUMBER,
}
IDENTITY_SCHEMA = _object({"tier": {**_STRING, "enum": ["worker", "router"]}, **_IDENTITY})
TICKET_SCHEMA = _object({"ticket": _STRING, "expires_ms": _NATURAL})
_PROCESS = {
    **_IDENTITY,
    "sequence": _NATURAL,
    "state": _STRING,
    "generation": _object(_GENERATION),
}
WORKER_STATUS_SCHEMA = _object(
    {
        "tier": _enum("worker"),
        "topology": _STRING,
        "host": _HOST,
        "rack": _STRING,
        **_PROCESS,
        "storage_fault": {
            "type": ["string", "null"],
            "description": "What the machine or the group refuses, such as disk space, and the remedy.",
        },
        "ceiling": _object({"max_record_lag": _FIGURE, "max_time_lag_ms": _FIGURE, "max_age_ms": _FIGURE}),
        "acceptable_recovery_lag": _NATURAL,
        "tasks": _array(_REPLICA_SCHEMA),
    }
)
_KNOWN_WORKER = {
    "host": _HOST,
    "live": _BOOLEAN,
    "suspect": _BOOLEAN,
    "recovering": _BOOLEAN,
    "in_flight": _NATURAL,
}
_ROUTER_PROCESS = _object(
    {
        "process_id": {"type": ["string", "null"]},
        "state": {**_STRING, "description": "silent if it does not answer"},
        "workers_live": _FIGURE,
    }
)
ROUTER_STATUS_SCHEMA = _object(
    {
        "tier": _enum("router"),
        **_PROCESS,
        "workers": _array(_object(_KNOWN_WORKER)),
        "rejected_addresses": _array(
            _object({"address": _HOST, "reason": {**_STRING, "description": "Why no requests are sent there."}})
        ),
        "auth_rejected_by": _array(_HOST),
        "processes": _array(_ROUTER_PROCESS),
    }
)

_LIVE_REPLICA_SCHEMA = _object(
    {
        "host": _HOST,
        "role": ROLE_SCHEMA,
        "live": {**_BOOLEAN, "description": "Whether its worker answers."},
        "lagging": {
            **_BOOLEAN,
            "description": "Whether its record lag is beyond `acceptable_recovery_lag`.",
        },
        **LAG_SCHEMA["properties"],
    },
    {
        "failure": {**_STRING, "description": "Why records cannot be applied, or the log cannot be read."},
        "restored_records": _NATURAL,
        "restore_seconds_left": {**_FIGURE, "description": "At the pace so far; null until that is known."},
    },
)
_CONDITION = _enum("unheld", "failed", "standby", "restoring", "lagging", "lag-unknown", "served")
REPLICAS_SCHEMA = _object(
    {
        "store": _STRING,
        "generation": _NATURAL,
        "partitions": _array(
            _object(
                {
                    "partition": _NATURAL,
                    "condition": _CONDITION,
                    "replicas": {
                        **_array(_LIVE_REPLICA_SCHEMA),
                        "description": "That which reads without bounds go to comes first.",
                    },
                }
            )
        ),
        "next": {**_FIGURE, "description": "`from` of the next page; null at the end."},
    }
)
_FINDING_SCHEMA = _object(
    {
        "kind": _STRING,
        "severity": _enum("error", "warning"),
        "detail": _STRING,
        "remedy": _STRING,
        "store": {"type": ["string", "null"]},
        "partitions": {**_array(_NATURAL), "description": "Those concerned, or the first of them."},
    }
)
HEALTH_SCHEMA = _object(
    {
        "tier": _enum("router", "worker"),
        "application_id": {"type": ["string", "null"]},
        "state": _STRING,
        "now_ms": _NATURAL,
        "surveyed_ms": {**_FIGURE, "description": "When the last survey of all replicas ended."},
        "generation": _NATURAL,
        "summary": {**_STRING, "description": "What is served, within what age, by how many workers."},
        "workers": _object({"known": _NATURAL, "live": _NATURAL}),
        "findings": {**_array(_FINDING_SCHEMA), "description": "What is wrong, the gravest first."},
        "stores": _array(
            _object(
                {
                    "store": _STRING,
                    "partitions": _NATURAL,
                    "conditions": {
                        "type": "object",
                        "additionalProperties": _NATURAL,
                        "description": "How many partitions are in which condition.",
                    },
                    **LAG_SCHEMA["properties"],
                    "restores": _array(
                        _object(
                            {
                                "partition": _NATURAL,
                                "host": _HOST,
                                "restored_records": _FIGURE,
                                "restore_seconds_left": _FIGURE,
                            }
                        )
                    ),
                }
            )
        ),
    }
)
TIMELINE_SCHEMA = _object(
    {
        "events": {
            **_array(
                _object(
                    {
                        "at_ms": _NATURAL,
                        "kind": _enum(
                            "assignment",
                            "promotion",
                            "active-lost",
                            "unheld",
                            "restore-begun",
                            "restore-ended",
                            "worker-up",
                            "worker-down",
                        ),
                        "detail": _STRING,
                        "store": {"type": ["string", "null"]},
                        "partitions": {
                            **_array(_NATURAL),
                            "description": "Those concerned, or the first of them.",
                        },
                        "host": _HOST_OR_NONE,
                    }
                )
            ),
            "description": "The oldest first, since this process started; the newest 256.",
        }
    }
)
_MILLISECONDS: Schema = {"type": ["number", "null"], "minimum": 0}
_PROBLEM_COUNTS: Schema = {
    "type": "object",
    "additionalProperties": _NATURAL,
    "description": "Refusals by problem; keys that do not exist are none.",
}
_BUCKETS = _object(
    {
        "bounds": _array(_NATURAL),
        "counts": {**_array(_NATURAL), "description": "One more than bounds: above all of them, or unknown."},
    }
)
HISTORY_SCHEMA = _object(
    {
        "store": _STRING,
        "interval_ms": _NATURAL,
        "samples": {
            **_array(
                _object(
                    {
                        "at_ms": _NATURAL,
                        "reads": {**_FIGURE, "description": "Results of reads; null where they are not counted."},
                        "p50_ms": _MILLISECONDS,
                        "p99_ms": _MILLISECONDS,
                        "problems": _PROBLEM_COUNTS,
                        **LAG_SCHEMA["properties"],
                    }
                )
            ),
            "description": "One a second, the oldest first. The lag is the largest of the replicas that reads "
            "without bounds go to.",
        },
        "served": {
            "oneOf": [
                {"type": "null"},
                _object(
                    {
                        "seconds": _NATURAL,
                        "problems": _PROBLEM_COUNTS,
                        "record_lag": _BUCKETS,
                        "time_lag_ms": _BUCKETS,
                        "age_ms": _BUCKETS,
                    }
                ),
            ],
            "description": "The lag of the answers of the last `seconds`; null where they are not counted.",
        },
    }
)
