"""A host's file is changed as text: whatever it looks like, what is not the entry survives byte for byte."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrtr_server.cli import jsonc_text, yaml_text

ENTRY = {"command": "/a/python", "args": ["-m", "x:app"], "env": {"A": '"// no comment, }'}}

NAMES = st.sampled_from(["a", "b", "//", "/*", "é", 'q"', "servers", "new-er", ",", "}"])
COMMENTS = st.sampled_from(["// one {\n", "// two, \r\n", "/* three */", '/* "four\n */', "/**/", "//\n"])
GAPS = st.lists(st.one_of(st.sampled_from(["", " ", "\n", "\t", "\r\n", "  \n"]), COMMENTS), max_size=3).map("".join)
LEAVES = st.sampled_from(['"text"', '"// {,]"', "1.5e3", "true", "null", "[]", "{}", "[1, 2,]", "[ {} ]"])


@st.composite
def objects(draw: st.DrawFn, values: st.SearchStrategy[str], between: str = "") -> str:
    """Return an object as people write it, with comments and commas anywhere that they may be."""
    parts = []
    for name in draw(st.lists(NAMES.filter(lambda name: name != "servers"), max_size=3, unique=True)):
        gaps = [draw(GAPS) for _ in range(3)]
        parts.append(f"{gaps[0]}{json.dumps(name)}{gaps[1]}:{gaps[2]}{draw(values)}{between}{draw(GAPS)}")
    trailing = draw(st.sampled_from(["", ","])) if parts else ""
    return f"{{{','.join(parts)}{trailing}{draw(GAPS)}}}"


SERVERS = objects(st.one_of(LEAVES, objects(LEAVES)), "// keep\n")


@st.composite
def files(draw: st.DrawFn) -> str:
    """Return a file that has servers, before, between or behind something else."""
    before, after = draw(GAPS), draw(GAPS)
    members = [f'{draw(GAPS)}"servers"{draw(GAPS)}:{draw(GAPS)}{draw(SERVERS)}{draw(GAPS)}']
    members += [f'{draw(GAPS)}"x{n}": {draw(LEAVES)}{draw(GAPS)}' for n in range(draw(st.integers(0, 2)))]
    return f"{before}{{{','.join(draw(st.permutations(members)))}{draw(GAPS)}}}{after}"


@given(files())
def test_an_entry_of_json_comes_and_goes_and_leaves_no_trace(text: str) -> None:
    before = jsonc_text.read(text)
    after = jsonc_text.edit(text, "servers", "new", ENTRY)
    assert jsonc_text.read(after) == {**before, "servers": {**before["servers"], "new": ENTRY}}
    assert list(jsonc_text.read(after)["servers"])[-1] == "new"
    gone = jsonc_text.edit(after, "servers", "new", None)
    assert jsonc_text.read(gone) == before
    if before["servers"]:
        assert gone == text
    else:  # the space within is not kept
        assert re.sub(r"\s", "", gone) == re.sub(r"\s", "", text)


@given(files(), st.data())
def test_an_entry_of_json_that_is_replaced_or_removed_takes_nothing_with_it(text: str, data: st.DataObject) -> None:
    before = jsonc_text.read(text)
    if not before["servers"]:
        return
    name = data.draw(st.sampled_from(sorted(before["servers"])))
    replaced = jsonc_text.edit(text, "servers", name, ENTRY)
    assert jsonc_text.read(replaced) == {**before, "servers": {**before["servers"], name: ENTRY}}
    removed = jsonc_text.edit(text, "servers", name, None)
    rest = {each: value for each, value in before["servers"].items() if each != name}
    assert jsonc_text.read(removed) == {**before, "servers": rest}
    assert removed.count("// keep") == replaced.count("// keep") == text.count("// keep")


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("", '{\n  "servers": {\n    "n": {}\n  }\n}\n'),
        ("\n", '{\n  "servers": {\n    "n": {}\n  }\n}\n'),
        ('{"a":1}', '{"a":1, "servers": {"n": {}}}'),
        ('{\n\t"a": 1\n}\n', '{\n\t"a": 1,\n\t"servers": {\n\t\t"n": {}\n\t}\n}\n'),
        ('{\r\n    "servers": {}\r\n}', '{\r\n    "servers": {\r\n        "n": {}\r\n    }\r\n}'),
        (
            '{\n  "servers": {\n    // of a\n    "a": {} // last\n    // end\n  }\n}',
            '{\n  "servers": {\n    // of a\n    "a": {}, // last\n    // end\n    "n": {}\n  }\n}',
        ),
        ('{\n  "servers": {\n    "a": {},\n  },\n}', '{\n  "servers": {\n    "a": {},\n    "n": {},\n  },\n}'),
    ],
)
def test_an_entry_of_json_is_written_as_those_beside_it(text: str, after: str) -> None:
    assert jsonc_text.edit(text, "servers", "n", {}) == after


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{\n  "a": 1\n  "b": 2\n}', "line 3: Expecting ',' delimiter"),
        ('{\n"a": 1', "line 2: Expecting ',' delimiter"),
        ("// nothing\n", "line 2: Expecting value"),
        ("[1]", "line 1: it is no object"),
        ('{"a": 1} x', "line 1: Extra data"),
        ("[" * 100_000, "it is nested too deeply"),
    ],
)
def test_json_that_cant_be_read_names_the_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        jsonc_text.read(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{\n"servers": []\n}', "line 2: it is no object"),
        ('{"servers": {},\n"servers": {}}', "line 2: 'servers' is there twice"),
        ('{"servers": {"n": 1,\n\n"n": 2}}', "line 3: 'n' is there twice"),
    ],
)
def test_json_in_which_an_entry_has_no_clear_place_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        jsonc_text.edit(text, "servers", "n", {})


# YAML

PARTS = st.sampled_from(
    [
        "enabled: true",
        "cmd: npx # with a comment",
        "args: [a, 'b', \"c\"]",
        "args:\n@- a\n@- b",
        "args:\n@  - a\n@  # of the list",
        "envs: {}",
        "envs:\n@  KEY: no",
        "note: |\n@  several\n@\n@  lines\n",
        "note: >-\n@  folded",
        'text: "two\n@  lines"',
        "nothing:",
        "# a comment",
    ]
)
KEYS = st.lists(st.sampled_from(["developer", "b", "'quoted'", '"x y"', "'true'", "é"]), unique=True, max_size=3)
OTHER = st.sampled_from(
    ["", "GOOSE_MODE: auto\n", "# top\n\n", "list:\n- a\n- b\n", "deep:\n  extensions:\n    a: 1\n"]
)


@st.composite
def goose_files(draw: st.DrawFn) -> str:
    step = draw(st.sampled_from(["  ", "    ", " "]))
    lines = [
        draw(OTHER),
        "extensions:",
        draw(st.sampled_from(["\n", " # of all\n", "\n\n", "\n" + step + "# first\n"])),
    ]
    keys = draw(KEYS)
    for key in keys:
        parts = draw(st.lists(PARTS, min_size=1, max_size=3, unique_by=lambda part: part.partition(":")[0]))
        lines += [f"{step}{key}:\n"]
        lines += [f"{2 * step}{part.replace('@', 2 * step)}\n" for part in parts]
    end = draw(st.sampled_from(["", "# end\n", "\n\n", "GOOSE_MODEL: x\n", "z:\n  - 1\n"]))
    text = "".join([*lines, end])
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


@given(goose_files())
def test_an_entry_of_yaml_comes_and_goes_and_leaves_no_trace(text: str) -> None:
    before = yaml_text.read(text)
    after = yaml_text.edit(text, "extensions", "new", ENTRY)
    assert yaml_text.read(after) == {**before, "extensions": {**(before["extensions"] or {}), "new": ENTRY}}
    gone = yaml_text.edit(after, "extensions", "new", None)
    assert gone == (
        text if before["extensions"] else re.sub("^extensions:", "extensions: {}", text, flags=re.MULTILINE)
    )


@given(goose_files(), st.data())
def test_an_entry_of_yaml_that_is_replaced_or_removed_takes_no_comment_of_others(
    text: str, data: st.DataObject
) -> None:
    before = yaml_text.read(text)
    servers = before["extensions"]
    if not servers:
        return
    name = data.draw(st.sampled_from(sorted(servers)))
    replaced = yaml_text.edit(text, "extensions", name, ENTRY)
    assert yaml_text.read(replaced) == {**before, "extensions": {**servers, name: ENTRY}}
    removed = yaml_text.edit(text, "extensions", name, None)
    rest = {each: value for each, value in servers.items() if each != name}
    assert yaml_text.read(removed) == {**before, "extensions": rest}
    for comment in ("# top", "# end", "# first", "# of all"):
        assert removed.count(comment) == replaced.count(comment) == text.count(comment)


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("", "extensions:\n  n:\n    a: 1\n"),
        ("# only this", "# only this\nextensions:\n  n:\n    a: 1\n"),
        ("b: 1\n", "b: 1\nextensions:\n  n:\n    a: 1\n"),
        ("extensions: {} # none\nb: 1\n", "extensions: # none\n  n:\n    a: 1\nb: 1\n"),
        ("extensions:", "extensions:\n  n:\n    a: 1\n"),
        ("extensions:\n    b:\n        c: 1", "extensions:\n    n:\n      a: 1\n    b:\n        c: 1"),
    ],
)
def test_an_entry_of_yaml_is_written_below_its_mapping(text: str, after: str) -> None:
    assert yaml_text.edit(text, "extensions", "n", {"a": 1}) == after


def test_a_comment_within_an_entry_of_yaml_goes_with_it_and_one_below_stays() -> None:
    text = "extensions:\n  a:\n    note: |\n      text\n  b:\n    c: 1\n\n      # of b\n  # below\n"
    removed = yaml_text.edit(text, "extensions", "b", None)
    assert removed == "extensions:\n  a:\n    note: |\n      text\n  # below\n"


@pytest.mark.parametrize(
    "text",
    [
        "{extensions: {a: {b: 1}}}",
        "b: 1\nextensions: {a: {b: 1}}",
        "extensions:\n  - a",
        "extensions: text",
        "extensions:\n  ? n\n  : 1",
        "x: &x\n  a: 1\nextensions:\n  n: *x\n",
    ],
)
def test_yaml_in_which_an_entry_has_no_lines_of_its_own_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^line \d+: "):
        yaml_text.edit(text, "extensions", "n", {"a": 1})


@pytest.mark.parametrize("text", ["a: 1\n b: 2", "a: 1\na: 2", "- a", "a: 1\n---\nb: 2", "\ta: 1"])
def test_yaml_that_cant_be_read_names_the_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"line \d"):
        yaml_text.read(text)
