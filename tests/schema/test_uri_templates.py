"""URI templates: which URIs they match, and what they give."""

import re
import time
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrtr_server import MRTRServer, SetupError
from mrtr_server.schema.uri_templates import UriTemplate, normal
from mrtr_server.testing import Client


def match(template: str, uri: str) -> dict[str, str] | None:
    """Return the values of a URI by name; None if it does not match."""
    found = UriTemplate(template).match(uri)
    return None if found is None else found.values


def test_a_simple_expression_matches_up_to_the_next_slash() -> None:
    template = "weather://{country}/{city}"
    assert UriTemplate(template).names == ["country", "city"]
    assert match(template, "weather://norway/oslo") == {"country": "norway", "city": "oslo"}
    assert match(template, "weather://norway/oslo/today") is None


@pytest.mark.parametrize(
    "uri",
    ["weather://", "weather:///", "weather://a/b", "weather://a?b", "weather://a#b", "Wetter://a", " weather://a", ""],
)
def test_it_matches_neither_nothing_nor_what_ends_a_segment(uri: str) -> None:
    assert match("weather://{city}", uri) is None


def test_a_reserved_expression_matches_slashes_too() -> None:
    template = "file:///{+path}"
    assert match(template, "file:///a") == {"path": "a"}
    assert match(template, "file:///a/b?c=d#e") == {"path": "a/b?c=d#e"}
    assert match(template, "file:///") is None


def test_both_kinds_may_stand_side_by_side() -> None:
    template = "git://{repo}/blob/{+path}.md"
    assert match(template, "git://r/blob/docs/a.md") == {"repo": "r", "path": "docs/a"}
    assert match(template, "git://r/blob/docs/a.md.md") == {"repo": "r", "path": "docs/a.md"}
    assert match(template, "git://r/tree/docs/a.md") is None


def test_a_value_ends_where_the_text_after_it_first_comes() -> None:
    assert match("x:{a}-{b}", "x:1-2-3") == {"a": "1", "b": "2-3"}
    assert match("x:{+a}/to/{+b}", "x:1/to/2/to/3") == {"a": "1", "b": "2/to/3"}
    assert match("x:{a}-{b}", "x:-1") is None


@given(st.text(min_size=1, max_size=20))
def test_values_are_decoded(value: str) -> None:
    assert match("x://{it}/y", f"x://{quote(value, safe='')}/y") == {"it": value}
    assert match("x://{+it}", f"x://{quote(value, safe='/')}") == {"it": value}


def test_a_decoded_value_can_hold_anything() -> None:
    assert match("file:///{name}", "file:///..%2F..%2Fetc%00") == {"name": "../../etc\x00"}


@given(st.text("abc.*+?()[]|^$\\ \n", max_size=10))
def test_text_outside_of_expressions_stands_for_itself(text: str) -> None:
    template = f"x:{text}{{it}}{text}"
    assert match(template, f"x:{text}value{text}") == {"it": "value"}
    assert match(template, f"x:{text}value{text}/") is None


@pytest.mark.parametrize(
    "expression",
    ["?", "?q*", "?a,", "&", "/path", "#hash", ".ext", ";param", "a,b", "a*", "a:3", "", " a", "1a", "é", "a-b"],
)
def test_other_expressions_are_refused(expression: str) -> None:
    with pytest.raises(SetupError, match=r"is not supported; use \{name\} or \{\+name\}, and at the end \{\?name\}"):
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


class TestQueries:
    @pytest.mark.parametrize(
        ("uri", "values"),
        [
            ("books://a", {}),
            ("books://a?", {}),
            ("books://a?limit=3", {"limit": "3"}),
            ("books://a?from=x&limit=3", {"limit": "3", "from": "x"}),
            ("books://a?limit=3&limit=4&other=5", {"limit": "3"}),
            ("books://a?limit=", {"limit": ""}),
            ("books://a?limit", {"limit": ""}),
            ("books://a?from=a%20b+c%26d%3D%2Fe=f", {"from": "a b c&d=/e=f"}),
        ],
    )
    def test_the_names_come_in_any_order_or_not_at_all(self, uri: str, values: dict[str, str]) -> None:
        for template in ("books://{shelf}{?limit,from}", "books://{shelf}{?limit}{&from}"):
            assert match(template, uri) == {"shelf": "a", **values}

    @pytest.mark.parametrize(
        "uri", ["books://a/b?limit=3", "books://a#?limit=3", "books://a?limit=3#x", "books://?limit=3"]
    )
    def test_the_rest_is_matched_as_without(self, uri: str) -> None:
        assert match("books://{shelf}{?limit}", uri) is None

    def test_one_may_go_on_with_a_query(self) -> None:
        template = "books://{shelf}?lang={lang}{&limit}"
        assert match(template, "books://a?lang=en") == {"shelf": "a", "lang": "en"}
        assert match(template, "books://a?lang=en&x=1&limit=2") == {"shelf": "a", "lang": "en", "limit": "2"}
        assert match(template, "books://a?limit=2") is None

    def test_a_path_ends_where_a_query_begins(self) -> None:
        assert match("file:///{+path}{?rev}", "file:///a/b?rev=1") == {"path": "a/b", "rev": "1"}
        assert match("file:///{+path}/log{?rev}", "file:///a/b/log?rev=/log") == {"path": "a/b", "rev": "/log"}

    @pytest.mark.parametrize(
        ("template", "problem"),
        [
            ("x://{a}{?b}/c", "nothing can follow {?b}"),
            ("x://{a}{?b}{c}", "is not supported"),
            ("x://{?a}{?b}", "write {&b} in place of {?b}"),
            ("x://a?b=1{?c}", "write {&c} in place of {?c}"),
            ("x://a{&c}", "write {?c} in place of {&c}"),
            ("x://{a}{?a}", "has the variable 'a' twice"),
            ("x://{?a,a}", "has the variable 'a' twice"),
        ],
    )
    def test_what_is_no_query_is_refused(self, template: str, problem: str) -> None:
        with pytest.raises(SetupError, match=re.escape(problem)):
            UriTemplate(template)

    def test_what_it_lacks_has_its_default_or_is_missed(self) -> None:
        app = MRTRServer("books")

        @app.resource("books://{shelf}{?limit,lang}")
        def books(shelf: str, lang: str, limit: int = 10) -> str:
            return f"{shelf} {lang} {limit}"

        client = Client(app)
        assert client.read("books://a?lang=en&limit=3").content[0]["text"] == "a en 3"
        assert client.read("books://a?lang=en").content[0]["text"] == "a en 10"
        assert "- lang: Field required" in client.read("books://a?limit=3").message["error"]["message"]
        misfit = client.read("books://a?lang=en&limit=x").message["error"]["message"]
        assert "- limit: Input should be a valid integer" in misfit
        listed = client.request("resources/templates/list").message["result"]["resourceTemplates"]
        assert listed[0]["uriTemplate"] == "books://{shelf}{?limit,lang}"


class TestEquivalentURIs:
    @pytest.mark.parametrize(
        ("written", "other"),
        [
            ("data://na%C3%AFve", "data://naïve"),
            ("data://na%C3%AFve", "data://na%c3%afve"),
            ("data://na%C3%AFve", "d%61ta://n%61ïve"),
            ("a://my%20file", "a://my file"),
            ("a://~x", "a://%7Ex"),
            ("a://100%25", "a://100%"),
            ("a://%22%7B", 'a://"{'),
            ("docs://Intro/A", "Docs://Intro/A"),
            ("https://example.com/A?B", "HTTPS://Example.com/A?B"),
            ("https://example.com/", "https://example.com"),
            ("https://example.com/?A", "https://EXAMPLE.com?A"),
        ],
    )
    def test_are_written_in_one_way(self, written: str, other: str) -> None:
        assert normal(other) == normal(written) == written

    @pytest.mark.parametrize(
        ("one", "two"),
        [
            ("a://b%2Fc", "a://b/c"),
            ("a://b%3Fc", "a://b?c"),
            ("a://b%2525", "a://b%25"),
            ("a://B", "a://b"),
            ("https://a/B", "https://a/b"),
        ],
    )
    def test_what_is_reserved_stays_apart(self, one: str, two: str) -> None:
        assert normal(one) != normal(two)

    def test_clients_write_schemes_and_hosts_in_lower_case(self) -> None:
        app = MRTRServer("app")
        app.resource("Docs://Intro", name="intro")(lambda: "intro")
        app.resource("https://Example.com", name="site")(lambda: "site")
        app.resource("Wiki://Page/{name}", name="page")(lambda name: f"page {name}")
        app.resource("https://{host}/A:B", name="host")(lambda host: f"host {host}")
        found = {
            uri: Client(app).read(uri).text
            for uri in ("docs://Intro", "https://example.com/", "wiki://Page/A", "HTTPS://A/A:B")
        }
        assert list(found.values()) == ["intro", "site", "page A", "host a"]
        assert "error" in Client(app).read("docs://intro").message

    def test_the_text_of_a_template_may_be_encoded(self) -> None:
        template = UriTemplate("docs://menü/my files/{+name}{?q}")
        for uri in (
            "docs://menü/my files/x?q=1",
            "docs://men%C3%BC/my%20files/%78?q=1",
            "docs://m%65n%c3%bc/my files/x?q=1",
        ):
            found = template.match(uri)
            assert found is not None
            assert found.values == {"name": "x", "q": "1"}
            assert found.uri == "docs://menü/my files/x?q=1"

    def test_an_encoded_slash_is_part_of_a_value(self) -> None:
        assert match("docs://menü/{name}", "docs://men%C3%BC/a%2Fb") == {"name": "a/b"}
        assert match("docs://menü/{name}/end", "docs://men%C3%BC/a%2Fend") is None

    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
    def test_whatever_is_encoded_again_is_the_same(self, text: str) -> None:
        assert normal(normal(text)) == normal(text)
        assert unquote(normal(quote(text, safe=""))) == text

    def test_hooks_are_asked_about_the_uri_as_it_is_registered(self) -> None:
        asked = []

        def may(user: object, uri: str) -> bool:
            asked.append(uri)
            return True

        app = MRTRServer("equivalent")

        @app.resource("secret://plan", authorize=may)
        def plan() -> str:
            return "plan"

        @app.resource("secret://of/{user}", authorize=may)
        def of(user: str) -> str:
            return user

        client = Client(app)
        for uri in ("secret://pl%61n", "s%65cret://plan", "secret://%6Ff/ann", "secret://of/ann"):
            assert client.read(uri).content
        assert asked == ["secret://plan"] * 2 + ["secret://of/ann"] * 2
