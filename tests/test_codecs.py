import subprocess
import sys
import typing
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marq.codecs import BytesCodec, codec_for, is_identity
from marq.errors import ConfigurationError, DecodeError

text = st.text(st.characters(exclude_categories=["Cs"]))
whole = st.integers(-(2**63), 2**64 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | whole | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner) | st.dictionaries(text, inner),
    max_leaves=10,
)


@dataclass
class Email:
    to: str
    copies: int = 0


@dataclass
class Thread:
    subject: str
    replies: "list[Thread]"


class Point(msgspec.Struct):
    x: int
    y: int | None = None


class Options(TypedDict, total=False):
    colour: str


class Pair(NamedTuple):
    left: str
    right: int


class Colour(Enum):
    RED = "red"


class Size(StrEnum):
    SMALL = "small"


class Order(pydantic.BaseModel):
    id: int
    note: str = pydantic.Field("", alias="Note")


class Refund(pydantic.BaseModel):
    order: Order


@pydantic.dataclasses.dataclass
class Payment:
    cents: Annotated[int, pydantic.Field(ge=0)]


class Foreign:
    pass


@dataclass
class HoldsForeign:
    inner: list[Foreign]


@dataclass
class Picky:
    number: int

    def __post_init__(self):
        if self.number < 0:
            raise KeyError("below zero")


UserId = NewType("UserId", int)
threads = st.recursive(
    st.builds(Thread, text, st.just([])), lambda inner: st.builds(Thread, text, st.lists(inner, max_size=3))
)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (bytes, st.binary()),
        (str, text),
        (Any, json_values),
        (dict, st.dictionaries(text, json_values)),
        (list, st.lists(json_values)),
        (int, whole),
        (float, st.floats(allow_nan=False, allow_infinity=False)),
        (bool, st.booleans()),
        (None, st.none()),
        (datetime, st.datetimes(timezones=st.just(UTC))),
        (UUID, st.uuids()),
        (Colour, st.sampled_from(Colour)),
        (Size, st.sampled_from(Size)),
        (Email, st.builds(Email, text, st.integers(-(2**63), 2**63))),
        (Thread, threads),
        (Point, st.builds(Point, whole, st.none() | whole)),
        (Options, st.fixed_dictionaries({}, optional={"colour": text})),
        (Pair, st.builds(Pair, text, whole)),
        (list[Email], st.lists(st.builds(Email, text))),
        (dict[str, Point], st.dictionaries(text, st.builds(Point, whole))),
        (tuple[int, str], st.tuples(whole, text)),
        (set[int], st.sets(whole)),
        (int | None, st.none() | whole),
        (Literal["a", "b"], st.sampled_from("ab")),
        (Annotated[int, msgspec.Meta(ge=0)], st.integers(0, 2**64 - 1)),
        (UserId, whole),
        (Order, st.builds(Order, id=st.integers(), Note=text)),
        (Refund, st.builds(Refund, order=st.builds(Order, id=st.integers()))),
        (list[Order], st.lists(st.builds(Order, id=st.integers()))),
        (Payment, st.builds(Payment, cents=st.integers(0, 10**6))),
    ],
)
def test_what_is_encoded_is_decoded_as_the_same(kind, values):
    codec = codec_for(kind)

    @given(values)
    def there_and_back(value):
        data = codec.encode(value)
        assert type(data) is bytes
        assert codec.decode(data) == value

    there_and_back()


@pytest.mark.parametrize(
    ("kind", "value", "sentence"),
    [
        (bytes, "text", "this queue holds bytes, not str"),
        (str, b"bytes", "this queue holds str, not bytes"),
        (Email, {"to": "a"}, "this queue holds Email, not dict"),
        (Point, Email("a"), "this queue holds Point, not Email"),
        (Options, [], "this queue holds Options, not list"),
        (list[int], (1, 2), "this queue holds list[int], not tuple"),
        (Annotated[list[int], "doc"], 5, "this queue holds Annotated[list[int], 'doc'], not int"),
        (Email, Email(5), "this queue holds Email, and this Email does not fit: Expected `str`, got `int` - at `$.to`"),
        (list[int], [1, "x"], "this queue holds list[int], and this list does not fit: Expected `int`, got `str` - at"),
        (int, True, "this queue holds int, and this bool does not fit: Expected `int`, got `bool`"),
        (float, float("nan"), "this queue holds float, and this float does not fit: Expected `float`, got `null`"),
        (int | None, "x", "this queue holds int | None, and this str does not fit: Expected `int | null`, got `str`"),
        (dict, {(1, 2): 3}, "this queue holds dict, and this dict does not fit: Only dicts with str-like"),
        (Any, Foreign(), "this queue holds Any, and this Foreign does not fit: Encoding objects of type Foreign"),
        (str, "\ud800", "this queue holds str, and this str does not fit: 'utf-8' codec can't encode character"),
        (Order, {"id": 1}, "this queue holds Order, and this dict does not fit: "),
        (Order, Order.model_construct(id="x"), "this queue holds Order, and this Order does not fit: "),
    ],
)
def test_a_value_of_another_type_is_refused_when_it_is_sent(kind, value, sentence):
    with pytest.raises(TypeError) as caught:
        codec_for(kind).encode(value)
    assert str(caught.value).startswith(sentence)


@given(whole | text | st.lists(whole) | st.none() | st.builds(Email, whole | text, whole | text))
def test_what_can_be_sent_can_be_received(value):
    codec = codec_for(Email)
    try:
        data = codec.encode(value)
    except TypeError:
        assert not (isinstance(value, Email) and isinstance(value.to, str) and isinstance(value.copies, int))
    else:
        assert codec.decode(data) == value


@pytest.mark.parametrize(
    ("kind", "data", "sentence"),
    [
        (str, b"\xff", "not str: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        (Email, b"", "not Email: Input data was truncated"),
        (Email, b'{"to": 5}', "not Email: Expected `str`, got `int` - at `$.to`"),
        (Any, b"{", "not Any: Input data was truncated"),
        (Any, b"[" * 100_000, "not Any: maximum recursion depth exceeded while deserializing an object"),
        (Picky, b'{"number": -1}', "not Picky: 'below zero'"),
        (
            Order,
            b'{"id": "five"}',
            "not Order: Input should be a valid integer, unable to parse string as an integer - at `id`",
        ),
        (Order, b"{", "not Order: Invalid JSON: EOF while parsing an object at line 1 column 1"),
        (Refund, b'{"order": {}}', "not Refund: Field required - at `order.id`"),
        (Payment, b'{"cents": -1}', "not Payment: Input should be greater than or equal to 0 - at `cents`"),
    ],
)
def test_a_payload_of_another_type_is_refused_with_the_reason(kind, data, sentence):
    with pytest.raises(DecodeError) as caught:
        codec_for(kind).decode(data)
    assert str(caught.value) == sentence
    assert caught.value.raw == data
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("kind", [str, Any, Email, Order])
def test_a_record_without_a_value_is_refused(kind):
    with pytest.raises(DecodeError, match=r": the record has no value$") as caught:
        codec_for(kind).decode(None)
    assert caught.value.raw is None


def test_the_reason_does_not_carry_the_payload():
    secret = "x" * 10_000
    for kind, data in ((Colour, f'"{secret}"'), (Order, f'{{"id": "{secret}"}}')):
        with pytest.raises(DecodeError) as caught:
            codec_for(kind).decode(data.encode())
        assert len(str(caught.value)) < 250


def test_an_error_without_words_is_named():
    @dataclass
    class Silent:
        number: int

        def __post_init__(self):
            raise ArithmeticError

    with pytest.raises(DecodeError, match=r"Silent: ArithmeticError$"):
        codec_for(Silent).decode(b'{"number": 1}')


def test_bytes_are_handed_out_untouched():
    codec = codec_for(bytes)
    assert is_identity(codec)
    payload = b"payload"
    assert codec.encode(payload) is payload
    assert codec.decode(payload) is payload
    assert codec.decode(None) is None


@pytest.mark.parametrize("kind", [str, Any, Email, Order])
def test_other_codecs_do_something(kind):
    assert not is_identity(codec_for(kind))


class Reversed:
    def encode(self, value, /):
        return value[::-1]

    def decode(self, data, /):
        return data[::-1]


def test_a_codec_of_the_user_is_taken_as_it_is():
    codec = Reversed()
    assert codec_for(codec) is codec
    assert not is_identity(codec)
    ours = BytesCodec()
    assert codec_for(ours) is ours


def test_the_class_of_a_codec_is_no_codec():
    with pytest.raises(ConfigurationError, match=r"Reversed looks like a codec: pass an object of it, not the class"):
        codec_for(Reversed)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Foreign, "Foreign cannot be the type of a queue. Possible are bytes, str, "),
        (OrderedDict, "OrderedDict cannot be the type of a queue. "),
        (object, "object cannot be the type of a queue. "),
        (HoldsForeign, "HoldsForeign cannot be the type of a queue: it holds Foreign. "),
        (list[Foreign], f"list[{__name__}.Foreign] cannot be the type of a queue: it holds Foreign. "),
        (Email | Point, f"{__name__}.Email | {__name__}.Point cannot be the type of a queue: Type unions may not "),
        (list[Order | Foreign], f"list[{__name__}.Order | {__name__}.Foreign] cannot be the type of a queue: "),
        ("Email", "Email cannot be the type of a queue: Type ''Email'' is not supported"),
        (5, "5 cannot be the type of a queue: "),
        (typing.Callable, "Callable cannot be the type of a queue"),
    ],
)
def test_a_type_that_no_codec_can_do_is_refused(kind, sentence):
    with pytest.raises(ConfigurationError) as caught:
        codec_for(kind)
    assert str(caught.value).startswith(sentence)
    assert "pass a codec: an object with encode(value) -> bytes and decode(data) -> value" in str(caught.value)


def test_an_unknown_forward_reference_is_refused():
    @dataclass
    class Loose:
        other: "Nowhere"  # noqa: F821  # that it does not exist is the point

    with pytest.raises(ConfigurationError, match=r"Loose cannot be the type of a queue: name 'Nowhere' is not defined"):
        codec_for(Loose)


def test_pydantic_is_loaded_only_for_a_model():
    program = (
        "import sys; from typing import Any; from dataclasses import make_dataclass\n"
        "from marq.codecs import codec_for\n"
        "for kind in (bytes, str, Any, dict[str, int], make_dataclass('E', [('to', str)])): codec_for(kind)\n"
        "print('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
