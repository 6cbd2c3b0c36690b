"""From values to payloads and back. The codec follows from the queue's type; nothing is ever pickled.

A codec that encodes a typed value also reads it back before it is sent, so a value that no consumer could decode is
refused where the mistake is, not dead-lettered where it arrives.
"""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Any, Protocol, TypeVar, cast, get_args, get_origin, overload

import msgspec

from marq.errors import ConfigurationError, DecodeError

T = TypeVar("T")

_REASON_MAX = 200
_POSSIBLE = (
    "Possible are bytes, str, Any, dict and list (as JSON), dataclasses, msgspec Structs, TypedDicts, NamedTuples,"
    " enums, scalars such as int or datetime, containers of these, and pydantic models."
    " For anything else pass a codec: an object with encode(value) -> bytes and decode(data) -> value."
)


class Codec(Protocol[T]):
    """Turns values into payloads and back.

    `encode` raises TypeError for a value that is none of the queue's; `decode` raises DecodeError, which dead-letters
    the message. `data` is None when the Kafka record has no value.
    """

    def encode(self, value: T, /) -> bytes: ...
    def decode(self, data: bytes | None, /) -> T: ...


class BytesCodec:
    """The payload is the value, untouched; of a record without a value it is None."""

    identity = True

    def encode(self, value: bytes, /) -> bytes:
        if not isinstance(value, bytes):
            raise _wrong_type("bytes", value)
        return value

    def decode(self, data: bytes | None, /) -> bytes:
        return data  # type: ignore[return-value]  # None only for a record that nobody sent through a queue


class TextCodec:
    """Text as UTF-8."""

    def encode(self, value: str, /) -> bytes:
        if not isinstance(value, str):
            raise _wrong_type("str", value)
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise _unfit("str", value, error) from error

    def decode(self, data: bytes | None, /) -> str:
        try:
            return _present(data, "str").decode()
        except UnicodeDecodeError as error:
            raise _undecodable("str", data, error) from error


class JsonCodec:
    """JSON, checked against a type by msgspec."""

    def __init__(self, kind: Any) -> None:
        self._name = _name_of(kind)
        self._instances = _instances_of(kind)
        self._takes_all = kind is Any or kind is dict or kind is list
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(kind).decode

    def encode(self, value: Any, /) -> bytes:
        if not isinstance(value, self._instances):
            raise _wrong_type(self._name, value)
        try:
            data = self._encode(value)
            if not self._takes_all:
                self._decode(data)
        except Exception as error:  # a user's own constructor may raise anything
            raise _unfit(self._name, value, error) from error
        return data

    def decode(self, data: bytes | None, /) -> Any:
        payload = _present(data, self._name)
        try:
            return self._decode(payload)
        except Exception as error:  # a user's own constructor may raise anything
            raise _undecodable(self._name, data, error) from error


class PydanticCodec:
    """JSON, checked against a pydantic model, or a type that holds some. Pydantic is loaded only by making one."""

    def __init__(self, kind: Any) -> None:
        from pydantic import TypeAdapter  # noqa: PLC0415  # an optional dependency; whoever has a model has it

        self._name = _name_of(kind)
        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def encode(self, value: Any, /) -> bytes:
        try:
            data = self._adapter.dump_json(value, by_alias=True, warnings="error")
            self._adapter.validate_json(data)
        except Exception as error:  # a user's own constructor may raise anything
            raise _unfit(self._name, value, error) from error
        return data

    def decode(self, data: bytes | None, /) -> Any:
        payload = _present(data, self._name)
        try:
            return self._adapter.validate_json(payload)
        except Exception as error:  # a user's own constructor may raise anything
            raise _undecodable(self._name, data, error) from error


@overload
def codec_for(kind: type[T]) -> Codec[T]: ...
@overload
def codec_for(kind: Codec[T]) -> Codec[T]: ...
@overload
def codec_for(kind: Any) -> Codec[Any]: ...
def codec_for(kind: Any) -> Codec[Any]:
    """The codec of a queue's type; an object that is a codec already is returned as it is."""
    has_both = callable(getattr(kind, "encode", None)) and callable(getattr(kind, "decode", None))
    if has_both and not isinstance(kind, type):
        return cast("Codec[Any]", kind)
    if kind is bytes:
        return BytesCodec()
    if kind is str:
        return TextCodec()
    try:
        if _holds_pydantic(kind):
            return PydanticCodec(kind)
        foreign = _foreign_types(kind)
        if not foreign:
            return JsonCodec(kind)
    except Exception as error:  # unresolved names, impossible unions, pydantic's own errors
        raise ConfigurationError(
            f"{_name_of(kind)} cannot be the type of a queue: {_reason(error)}. {_POSSIBLE}"
        ) from error
    hint = f" {_name_of(kind)} looks like a codec: pass an object of it, not the class." if has_both else ""
    inside = "" if kind in foreign else f": it holds {', '.join(map(_name_of, foreign))}"
    raise ConfigurationError(f"{_name_of(kind)} cannot be the type of a queue{inside}.{hint} {_POSSIBLE}")


def is_identity(codec: Codec[Any]) -> bool:
    """Whether values are payloads as they are, so that a loop over messages need not call the codec."""
    return getattr(codec, "identity", False) is True


def _holds_pydantic(kind: Any) -> bool:
    return hasattr(kind, "__pydantic_validator__") or any(map(_holds_pydantic, get_args(kind)))


def _foreign_types(kind: Any) -> list[Any]:
    """The classes inside this type that JSON has no shape for, by walking msgspec's description of it."""
    foreign: list[Any] = []
    seen: set[int] = set()
    waiting: list[Any] = [msgspec.inspect.type_info(kind)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)
        elif isinstance(node, msgspec.inspect.CustomType):
            foreign.append(node.cls)
        elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field) and id(node) not in seen:
            seen.add(id(node))  # a type may hold itself
            waiting.extend(getattr(node, name) for name in node.__struct_fields__)
    return foreign


def _instances_of(kind: Any) -> Any:
    """What `isinstance` can say about values of this type; everything is an object."""
    origin = get_origin(kind) or kind
    if origin is Annotated:
        return _instances_of(get_args(kind)[0])
    if origin is float:
        return (float, int)  # as type checkers see it
    if hasattr(origin, "__total__"):  # a TypedDict, which refuses isinstance
        return dict
    return origin if isinstance(origin, type) and origin not in {Any, UnionType} else object


def _name_of(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")


def _reason(error: Exception) -> str:
    """Why, without what the payload holds: pydantic's own text would quote it."""
    list_of = getattr(error, "errors", None) if hasattr(error, "error_count") else None
    if list_of is not None:
        first = list_of(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        text = f"{first['msg']} - at `{place}`" if place else first["msg"]
    else:
        text = str(error) or type(error).__name__
    return text if len(text) <= _REASON_MAX else f"{text[:_REASON_MAX]}..."


def _present(data: bytes | None, name: str) -> bytes:
    if data is None:
        raise DecodeError(f"not {name}: the record has no value")
    return data


def _wrong_type(name: str, value: object) -> TypeError:
    return TypeError(f"this queue holds {name}, not {type(value).__name__}")


def _unfit(name: str, value: object, error: Exception) -> TypeError:
    return TypeError(f"this queue holds {name}, and this {type(value).__name__} does not fit: {_reason(error)}")


def _undecodable(name: str, data: bytes | None, error: Exception) -> DecodeError:
    return DecodeError(f"not {name}: {_reason(error)}", raw=data)


__all__ = ["BytesCodec", "Codec", "JsonCodec", "PydanticCodec", "TextCodec", "codec_for", "is_identity"]
