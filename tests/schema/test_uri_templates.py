"""URI templates: which URIs they match, and what they give."""

import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrtr_server import SetupError
from mrtr_server.schema.uri_templates import UriTemplate


def test_a_simple_expression_matches_up_to_the_next_slash() -> None:
    template = UriTemplate("weather://{country}/{city}")
    assert template.names == ["country", "city"]
    assert template.match("weather://norway/oslo") == {"country": "norway", "city": "oslo"}
    assert template.match("weather://norway/oslo/today") is None


@pytest.mark.parametrize(
    "uri",
    ["weather://", "weather:///", "weather://a/b", "weather://a?b", "weather://a#b", "Weather://a", " weather://a", ""],
)
def test_it_matches_neither_nothing_nor_what_ends_a_segment(uri: str) -> None:
    assert UriTemplate("weather://{city}").match(uri) is None


def test_a_reserved_expression_matches_slashes_too() -> None:
    template = UriTemplate("file:///{+path}")
    assert template.match("file:///a") == {"path": "a"}
    assert template.match("file:///a/b?c=d#e") == {"path": "a/b?c=d#e"}
    assert template.match("file:///") is None


def test_both_kinds_may_stand_side_by_side() -> None:
    template = UriTemplate("git://{repo}/blob/{+path}.md")
    assert template.match("git://r/blob/docs/a.md") == {"repo": "r", "path": "docs/a"}
    assert template.match("git://r/blob/docs/a.md.md") == {"repo": "r", "path": "docs/a.md"}
    assert template.match("git://r/tree/docs/a.md") is None


def test_a_value_ends_where_the_text_after_it_first_comes() -> None:
    assert UriTemplate("x:{a}-{b}").match("x:1-2-3") == {"a": "1", "b": "2-3"}
    assert UriTemplate("x:{+a}/to/{+b}").match("x:1/to/2/to/3") == {"a": "1", "b": "2/to/3"}
    assert UriTemplate("x:{a}-{b}").match("x:-1") is None


@given(st.text(min_size=1, max_size=20))
def test_values_are_decoded(value: str) -> None:
    assert UriTemplate("x://{it}/y").match(f"x://{quote(value, safe='')}/y") == {"it": value}
    assert UriTemplate("x://{+it}").match(f"x://{quote(value, safe='/')}") == {"it": value}


def test_a_decoded_value_can_hold_anything() -> None:
    assert UriTemplate("file:///{name}").match("file:///..%2F..%2Fetc%00") == {"name": "../../etc\x00"}


@given(st.text("abc.*+?()[]|^$\\ \n", max_size=10))
def test_text_outside_of_expressions_stands_for_itself(text: str) -> None:
    template = UriTemplate(f"x:{text}{{it}}{text}")
    assert template.match(f"x:{text}value{text}") == {"it": "value"}
    assert template.match(f"x:{text}value{text}/") is None


@pytest.mark.parametrize(
    "expression", ["?q", "/path", "#hash", ".ext", ";param", "&q", "a,b", "a*", "a:3", "", " a", "1a", "é", "a-b"]
)
def test_other_expressions_are_refused(expression: str) -> None:
    with pytest.raises(SetupError, match=r"is not supported; use \{name\} or \{\+name\}"):
        UriTemplate(f"x://{{{expression}}}")


@pytest.mark.parametrize("template", ["x:{a", "x:a}", "x:{{a}}", "x:}{a}", "x:{b{a}", "x:{a}}{b}"])
def test_a_brace_alone_is_refused(template: str) -> None:
    with pytest.raises(SetupError, match="has an unmatched brace"):
        UriTemplate(template)


def test_a_name_twice_is_refused() -> None:
    with pytest.raises(SetupError, match="has the variable 'a' twice"):
        UriTemplate("x://{a}/{+a}")


def test_expressions_that_nothing_parts_are_refused() -> None:
    with pytest.raises(SetupError, match="nothing marks the end of 'a'"):
        UriTemplate("x://{a}{b}")


@pytest.mark.parametrize(
    "template", ["x:{a}-{b}-{c}.json", "x:{+a}-{+b}-{+c}.json", "x:{a}/{b}.json", "x:{+a}.json", "x:{a}-z"]
)
def test_matching_takes_no_longer_than_the_uri_is(template: str) -> None:
    # A client chooses the URI; one that nearly fits must not cost the square of its length.
    compiled = UriTemplate(template)
    started = time.process_time()
    for hostile in ("-" * 100_000, "a" * 100_000, "-.json" * 20_000, "-a" * 50_000):
        assert compiled.match(f"x:{hostile}!") is None
    assert time.process_time() - started < 2
