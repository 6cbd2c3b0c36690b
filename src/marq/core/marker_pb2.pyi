from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN: _ClassVar[Kind]
    START: _ClassVar[Kind]
    KEEPALIVE: _ClassVar[Kind]
    RETRY: _ClassVar[Kind]
    END: _ClassVar[Kind]
    REDELIVERED: _ClassVar[Kind]
    DEAD: _ClassVar[Kind]
    TICK: _ClassVar[Kind]
UNKNOWN: Kind
START: Kind
KEEPALIVE: Kind
RETRY: Kind
END: Kind
REDELIVERED: Kind
DEAD: Kind
TICK: Kind

class Header(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: bytes
    def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class Headers(_message.Message):
    __slots__ = ("headers",)
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    def __init__(self, headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ...) -> None: ...

class MarkerBatch(_message.Message):
    __slots__ = ("version", "kind", "queue", "topic", "partition", "offsets", "owner", "redeliver_after_ms", "deadlines", "attempts", "waiting", "reason", "released", "max_attempts", "dead_letter_topic", "target_partitions", "target_topic", "keys", "null_keys", "values", "null_values", "headers", "timestamps")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    REDELIVER_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_TOPIC_FIELD_NUMBER: _ClassVar[int]
    TARGET_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TARGET_TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NULL_KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    NULL_VALUES_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMPS_FIELD_NUMBER: _ClassVar[int]
    version: int
    kind: Kind
    queue: str
    topic: str
    partition: int
    offsets: _containers.RepeatedScalarFieldContainer[int]
    owner: str
    redeliver_after_ms: _containers.RepeatedScalarFieldContainer[int]
    deadlines: _containers.RepeatedScalarFieldContainer[int]
    attempts: _containers.RepeatedScalarFieldContainer[int]
    waiting: bool
    reason: str
    released: bool
    max_attempts: int
    dead_letter_topic: str
    target_partitions: _containers.RepeatedScalarFieldContainer[int]
    target_topic: str
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    null_keys: _containers.RepeatedScalarFieldContainer[int]
    values: _containers.RepeatedScalarFieldContainer[bytes]
    null_values: _containers.RepeatedScalarFieldContainer[int]
    headers: _containers.RepeatedCompositeFieldContainer[Headers]
    timestamps: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., queue: _Optional[str] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ..., owner: _Optional[str] = ..., redeliver_after_ms: _Optional[_Iterable[int]] = ..., deadlines: _Optional[_Iterable[int]] = ..., attempts: _Optional[_Iterable[int]] = ..., waiting: bool = ..., reason: _Optional[str] = ..., released: bool = ..., max_attempts: _Optional[int] = ..., dead_letter_topic: _Optional[str] = ..., target_partitions: _Optional[_Iterable[int]] = ..., target_topic: _Optional[str] = ..., keys: _Optional[_Iterable[bytes]] = ..., null_keys: _Optional[_Iterable[int]] = ..., values: _Optional[_Iterable[bytes]] = ..., null_values: _Optional[_Iterable[int]] = ..., headers: _Optional[_Iterable[_Union[Headers, _Mapping]]] = ..., timestamps: _Optional[_Iterable[int]] = ...) -> None: ...
