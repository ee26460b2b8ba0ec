"""Agent Skills: folders are served as they are, with their digests, or refused by name."""

import base64
import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mrtr_server import BearerTokens, Caller, Context, Lists, MRTRServer, NotFound, SetupError
from mrtr_server.registration.yaml_front import read_yaml
from mrtr_server.testing import Client

ERAS = ["2026-07-28", "2025-11-25"]
FRONT = "---\nname: refunds\ndescription: Process refunds\n---\n# Refunds\n"

Write = Callable[[dict[str, str | bytes]], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write files into a folder, by their paths; return the folder."""

    def write(files: dict[str, str | bytes]) -> Path:
        for name, content in files.items():
            path = tmp_path / "skills" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return tmp_path / "skills"

    return write


def served(folder: Path, **options: Any) -> MRTRServer:
    app = MRTRServer("shop")
    app.skills(folder, **options)
    return app


def skills_of(client: Client) -> dict[str, Any]:
    return {each["uri"]: each for each in client.request("skills/list").result["skills"]}


def children(client: Client, uri: str) -> dict[str, Any]:
    found = client.request("resources/directory/read", {"uri": uri}).result["resources"]
    return {each["uri"]: each for each in found}


def check_digests(client: Client, entry: dict[str, Any]) -> None:
    """Check that each file of a skill has the size and the digest that its entry says."""
    for each in entry["resources"]:
        (content,) = client.read(each["uri"]).result["contents"]
        raw = base64.b64decode(content["blob"]) if "blob" in content else content["text"].encode()
        assert (len(raw), f"sha256:{hashlib.sha256(raw).hexdigest()}") == (each["size"], each["digest"])


FILES: dict[str, str | bytes] = {
    "acme/refunds/SKILL.md": FRONT,
    "acme/refunds/examples/e mail.md": "Dear \N{LATIN SMALL LETTER A WITH DIAERESIS}\r\n",
    "acme/refunds/logo.bin": b"\xff\xfe\x00",
    "acme/refunds/deep/nested/SKILL.md": "---\nname: nested\ndescription: More\n---\n",
    "acme/refunds/.git/config": "secret",
    "acme/refunds/__pycache__/x.pyc": b"",
}


@pytest.mark.parametrize("era", ERAS)
class TestAFolder:
    def test_is_listed_with_all_files_and_what_is_read_fits_their_digests(self, write: Write, era: str) -> None:
        client = Client(served(write(FILES)), era=era)
        root = "skill://acme/refunds"
        entry = skills_of(client)[f"{root}/SKILL.md"]
        assert entry["frontmatter"] == {"name": "refunds", "description": "Process refunds"}
        listed = [each["uri"].removeprefix(f"{root}/") for each in entry["resources"]]
        assert listed == ["SKILL.md", "deep/nested/SKILL.md", "examples/e%20mail.md", "logo.bin"]
        check_digests(client, entry)
        assert client.request("skills/get", {"uri": entry["uri"]}).result["skill"] == entry

    def test_lists_a_skill_within_another_by_itself_too(self, write: Write, era: str) -> None:
        client = Client(served(write(FILES)), era=era)
        nested = "skill://acme/refunds/deep/nested/SKILL.md"
        assert list(skills_of(client)) == ["skill://acme/refunds/SKILL.md", nested]
        assert [each["uri"] for each in skills_of(client)[nested]["resources"]] == [nested]

    def test_has_directories(self, write: Write, era: str) -> None:
        client = Client(served(write(FILES)), era=era)
        found = children(client, "skill://acme/refunds")
        assert {uri.rpartition("/")[2]: each["mimeType"] for uri, each in found.items()} == {
            "SKILL.md": "text/markdown",
            "deep": "inode/directory",
            "examples": "inode/directory",
            "logo.bin": "application/octet-stream",
        }
        assert list(children(client, "skill://acme")) == ["skill://acme/refunds"]
        assert found["skill://acme/refunds/SKILL.md"]["description"] == "Process refunds"
        for uri in ("skill://acme/refunds/SKILL.md", "skill://acme/refunds/", "skill://acme/none", "skill://", ""):
            assert client.request("resources/directory/read", {"uri": uri}).error.code == -32602

    def test_has_no_other_files(self, write: Write, era: str) -> None:
        client = Client(served(write(FILES)), era=era)
        for path in (".git/config", "../../secret", "%2e%2e/%2e%2e/etc/passwd", "examples", "none"):
            assert client.read(f"skill://acme/refunds/{path}").error.code in (-32602, -32002)
        for uri in ("skill://acme/refunds", "skill://none/SKILL.md", "skill://acme/refunds/logo.bin", "", 5, None):
            assert client.request("skills/get", {"uri": uri}).error.code == -32602

    def test_gets_a_prefix_as_a_part_of_its_path_and_keeps_its_name(self, write: Write, era: str) -> None:
        desk = MRTRServer("desk")
        desk.include(served(write(FILES)), prefix="eu")
        client = Client(desk, era=era)
        entry = skills_of(client)["skill://eu/acme/refunds/SKILL.md"]
        assert entry["frontmatter"]["name"] == "refunds"
        assert {each["uri"].partition("/acme")[0] for each in entry["resources"]} == {"skill://eu"}
        assert children(client, "skill://eu/acme/refunds")["skill://eu/acme/refunds/SKILL.md"]["name"] == "refunds"
        assert "Dear" in client.read("skill://eu/acme/refunds/examples/e%20mail.md").text

    def test_is_paged_by_whole_skills(self, write: Write, era: str) -> None:
        files = {f"s{at}/SKILL.md": f"---\nname: s{at}\ndescription: It\n---\n" for at in range(5)}
        app = MRTRServer("shop", lists=Lists(page_size=2))
        app.skills(write(dict(files)))
        client, names, result = Client(app, era=era), list[str](), dict[str, Any]()
        while not names or "nextCursor" in result:
            cursor = {"cursor": result["nextCursor"]} if names else {}
            result = client.request("skills/list", cursor).result
            names += [each["frontmatter"]["name"] for each in result["skills"]]
        assert names == ["s0", "s1", "s2", "s3", "s4"]
        for wrong in ("none", 5, client.request("tools/list").result.get("nextCursor", "x")):
            assert client.request("skills/list", {"cursor": wrong}).error.code == -32602


class TestFrontMatter:
    def test_goes_to_json_as_it_is_written(self, write: Write) -> None:
        front = (
            "name: refunds\ndescription: >-\n  Process\n  refunds\nlicense: no\nx-date: 2026-01-02\nx-null:\n"
            'x-list: [1, -2, 0x10, 1.5, 1e3, true, ~]\nx-time: 12:30:45\nx-octal: 010\nmetadata: {since: "2026"}\n'
        )
        folder = write({"refunds/SKILL.md": f"\ufeff---\r\n{front}---\r\n"})
        (entry,) = skills_of(Client(served(folder))).values()
        assert entry["frontmatter"] == {
            "name": "refunds",
            "description": "Process refunds",
            "license": "no",
            "x-date": "2026-01-02",
            "x-null": None,
            "x-list": [1, -2, 16, 1.5, 1000.0, True, None],
            "x-time": "12:30:45",
            "x-octal": 10,
            "metadata": {"since": "2026"},
        }

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("# Refunds", "has to begin with front matter"),
            (b"---\nname: \xff\n---\n", "has to begin with front matter"),
            ("---\nname: refunds\n", "has to begin with front matter"),
            ("---\n[1]\n---\n", "has to be fields"),
            ("---\nname: [\n---\n", "is no YAML"),
            ("---\nname: refunds\nname: refunds\n---\n", "there twice"),
            ("---\nname: !!python/object:os.system x\n---\n", "is no YAML"),
            ("---\nname: other\ndescription: It\n---\n", "its name: is 'other'; a folder is named as its skill is"),
            ("---\nname: refunds\n---\n", "it has no description:"),
            (
                f"---\nname: refunds\ndescription: {'x' * 1025}\n---\n",
                "its description: has to be a text of 1 to 1,024",
            ),
            ("---\nname: refunds\ndescription: 5\n---\n", "its description: has to be a text"),
            ("---\nname: refunds\ndescription: It\ncompatibility: ''\n---\n", "its compatibility: has to be a text"),
            ("---\nname: refunds\ndescription: It\nallowed-tools: [a]\n---\n", "its allowed-tools: has to be a text"),
            ("---\nname: refunds\ndescription: It\nmetadata: {a: 1}\n---\n", "its metadata: has to be texts"),
        ],
    )
    def test_that_does_not_fit_is_refused_by_name(self, write: Write, content: str | bytes, message: str) -> None:
        with pytest.raises(SetupError, match=message.replace("(", r"\(")) as refused:
            served(write({"refunds/SKILL.md": content}))
        assert "refunds" in str(refused.value)


class TestWhatIsRefused:
    @pytest.mark.parametrize("name", ["Refunds", "re--funds", "-refunds", "re_funds", "x" * 65])
    def test_a_name_that_none_can_have(self, write: Write, name: str) -> None:
        with pytest.raises(SetupError, match="can't name a skill"):
            served(write({f"{name}/SKILL.md": f"---\nname: {name}\ndescription: It\n---\n"}))

    def test_what_hosts_would_not_load(self, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = write({"refunds/SKILL.md": FRONT, **{f"refunds/{at}.txt": "x" for at in range(512)}})
        with pytest.raises(SetupError, match="has 513 files; hosts load at most 512 of one"):
            served(folder)
        (folder / "refunds" / "0.txt").unlink()
        (folder / "refunds" / "1.txt").write_bytes(b"x" * 16 * 1024 * 1024)
        with pytest.raises(SetupError, match="bytes; hosts load at most 16,777,216 of one"):
            served(folder)

    def test_a_link_out_of_the_folder(self, write: Write, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("secret")
        folder = write({"refunds/SKILL.md": FRONT})
        os.symlink(tmp_path / "secret", folder / "refunds" / "notes.md")
        with pytest.raises(SetupError, match=r"'notes\.md' is a link out of"):
            served(folder)

    def test_a_link_to_a_folder(self, write: Write) -> None:
        folder = write({"refunds/SKILL.md": FRONT, "more/a.md": "x"})
        os.symlink(folder / "more", folder / "refunds" / "more", target_is_directory=True)
        with pytest.raises(SetupError, match="is a link to a folder"):
            served(folder)

    def test_a_folder_without_skills(self, write: Write) -> None:
        with pytest.raises(SetupError, match=r"there is no SKILL\.md in"):
            served(write({"readme.md": "none"}))
        with pytest.raises(SetupError, match="is no folder"):
            served(Path("/none"))

    def test_the_same_path_twice(self, write: Write) -> None:
        app = served(folder := write({"refunds/SKILL.md": FRONT}))
        with pytest.raises(SetupError, match=r"skill://refunds/SKILL\.md"):
            app.skills(folder)

    def test_without_the_library(self, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "yaml", None)
        monkeypatch.delitem(sys.modules, "mrtr_server.registration.yaml_front", raising=False)
        with pytest.raises(SetupError, match=r"app\.skills needs yaml\. Install the extra 'skills'"):
            served(write({"refunds/SKILL.md": FRONT}))


class TestOneFromAFunction:
    @pytest.mark.parametrize("era", ERAS)
    def test_is_made_when_it_is_read(self, era: str) -> None:
        app = MRTRServer("shop")

        @app.skill("reports/daily", metadata={"team": "ops: 1"})
        async def daily(ctx: Context) -> str:
            """Assemble the "daily" report."""
            return "# Daily"

        client, uri = Client(app, era=era), "skill://reports/daily/SKILL.md"
        front = {"name": "daily", "description": 'Assemble the "daily" report.', "metadata": {"team": "ops: 1"}}
        assert skills_of(client) == {uri: {"uri": uri, "frontmatter": front, "resources": "dynamic"}}
        written = 'name: "daily"\ndescription: "Assemble the \\"daily\\" report."\nmetadata: {"team":"ops: 1"}'
        assert client.read(uri).text == f"---\n{written}\n---\n\n# Daily"
        assert read_yaml(written) == front
        assert list(children(client, "skill://reports/daily")) == [uri]

    def test_may_ask_and_may_be_none(self) -> None:
        app = MRTRServer("shop")

        @app.skill("refunds", description="Refund")
        async def refunds(ctx: Context) -> str:
            await ctx.confirm("Read it?")
            raise NotFound("Not today")

        client = Client(app)
        asked = client.request("resources/read", {"uri": "skill://refunds/SKILL.md"}).result
        assert asked["resultType"] == "input_required"

    @pytest.mark.parametrize(
        ("path", "description", "message"),
        [
            ("Daily", "It", "can't name a skill"),
            ("a/", "It", "can't name a skill"),
            ("daily", None, "it has no description:"),
        ],
    )
    def test_that_does_not_fit_is_refused(self, path: str, description: str | None, message: str) -> None:
        with pytest.raises(SetupError, match=message):
            MRTRServer("shop").skill(path, description=description)(lambda: "x")

    def test_must_return_text(self) -> None:
        app = MRTRServer("shop")
        app.skill("refunds", description="It")(lambda: {"a": 1})
        assert Client(app).read("skill://refunds/SKILL.md").error.code == -32603


SECTION = (
    "\n## Tools that ask\n\n"
    "These tools ask the person while they run. Do not answer for them, and do not say that something is done\n"
    "before the tool says so.\n\n"
)


@pytest.mark.parametrize("era", ERAS)
class TestASectionOfToolsThatAsk:
    def test_ends_each_skill_of_a_folder_and_what_is_read_fits_the_digests(self, write: Write, era: str) -> None:
        app = served(write(FILES), lists_asks=True)

        @app.tool(confirm="Pay\nall?")
        def pay() -> str:
            raise AssertionError

        @app.tool
        def find() -> str:
            raise AssertionError

        client = Client(app, era=era)
        self.check(client, "")

        @app.tool
        async def ask(ctx: Context) -> str:
            return await ctx.elicit("Who?", str)

        self.check(client, "- `ask` asks the person while it runs\n")

    def check(self, client: Client, line: str) -> None:
        skills = skills_of(client)
        assert len(skills) == 2
        for uri, entry in skills.items():
            read = client.read(uri).result["contents"][0]["text"]
            assert read.endswith(f"{SECTION}- `pay` asks the person to agree: Pay all?\n{line}")
            check_digests(client, entry)
            assert client.request("skills/get", {"uri": uri}).result["skill"] == entry

    def test_ends_one_from_a_function_and_names_tools_as_the_server_does(self, era: str) -> None:
        shop = MRTRServer("shop")

        @shop.tool(confirm="Sure?")
        def pay() -> str:
            raise AssertionError

        @shop.skill("refunds", lists_asks=True)
        def refunds() -> str:
            """Refund."""
            return "# Refunds"

        app = MRTRServer("all")
        app.include(shop, prefix="eu")
        read = Client(app, era=era).read("skill://eu/refunds/SKILL.md").result["contents"][0]["text"]
        assert read.endswith(f"# Refunds\n{SECTION}- `eu_pay` asks the person to agree: Sure?\n")

    def test_leaves_out_what_is_hidden_from_some_and_is_none_where_nothing_asks(self, write: Write, era: str) -> None:
        app = MRTRServer("shop")
        app.skills(write({"refunds/SKILL.md": FRONT}), lists_asks=True)
        client = Client(app, era=era, user="ann", scopes=["pay", "see"])
        skill = "skill://refunds/SKILL.md"
        for guards in ({"visible": ["see"]}, {"authorize": lambda _caller, _name: True}, {"scopes": ["pay"]}):
            assert client.read(skill).result["contents"][0]["text"] == FRONT

            @app.tool(name=f"pay_{next(iter(guards))}", confirm="Sure?", **guards)
            def pay() -> str:
                raise AssertionError

        read = client.read(skill).result["contents"][0]["text"]
        assert read == f"{FRONT}{SECTION}- `pay_scopes` asks the person to agree: Sure?\n"


class TestTheServer:
    def test_declares_them_once_it_has_some(self, write: Write) -> None:
        app = MRTRServer("shop")
        found = Client(app).request("server/discover").result["capabilities"]
        assert "io.modelcontextprotocol/skills" not in found.get("extensions", {})
        app.skills(write({"refunds/SKILL.md": FRONT}))
        found = Client(app).request("server/discover").result["capabilities"]
        assert found["extensions"]["io.modelcontextprotocol/skills"] == {"directoryRead": True}
        assert "resources" in found

    def test_shows_them_to_whom_they_are_for(self, write: Write) -> None:
        def is_ann(caller: Caller, name: str) -> bool:
            return caller.principal is not None and caller.principal.subject == "ann"

        app = MRTRServer("shop", auth=BearerTokens({"a": "ann", "b": "bob"}))
        app.skills(write({"refunds/SKILL.md": FRONT, "refunds/a.md": "x"}), authorize=is_ann)
        ann, bob = (Client(app, headers={"Authorization": f"Bearer {token}"}) for token in ("a", "b"))
        assert len(skills_of(ann)) == 1
        assert ann.request("skills/list").result["cacheScope"] == "private"
        assert skills_of(bob) == {}
        for method, uri in (
            ("skills/get", "skill://refunds/SKILL.md"),
            ("resources/directory/read", "skill://refunds"),
            ("resources/read", "skill://refunds/SKILL.md"),
            ("resources/read", "skill://refunds/a.md"),
        ):
            assert ann.request(method, {"uri": uri}).result
            assert bob.request(method, {"uri": uri}).error.code == -32602

    def test_takes_them_away_by_their_tags(self, write: Write) -> None:
        app = served(write({"refunds/SKILL.md": FRONT, "refunds/a.md": "x"}), tags=["beta"])
        app.disable(tags=["beta"])
        client = Client(app)
        assert skills_of(client) == {}
        assert client.read("skill://refunds/a.md").error.code == -32602

    def test_lists_them_by_pages_however_long_their_paths_are(self, write: Write) -> None:
        deep = "/".join(f"{'part-' * 10}{number}" for number in range(9))
        folder = write({f"{deep}/{name}/SKILL.md": FRONT.replace("refunds", name) for name in ("one", "two", "three")})
        app = MRTRServer("shop", lists=Lists(page_size=1))
        app.skills(folder)
        client = Client(app)
        asked: tuple[tuple[str, str, dict[str, str]], ...] = (
            ("skills/list", "skills", {}),
            ("resources/directory/read", "resources", {"uri": f"skill://{deep}"}),
        )
        for method, member, params in asked:
            found: list[str] = []
            cursors: list[str] = []
            while len(found) == len(cursors):
                cursor = {"cursor": cursors[-1]} if cursors else {}
                result = client.request(method, params | cursor).result
                found += [each["uri"] for each in result[member]]
                cursors += [result["nextCursor"]] if "nextCursor" in result else []
            assert len(set(found)) == 3
            assert len(set(map(len, cursors))) == 1  # nothing shows in them

    @pytest.mark.parametrize("method", ["skills/get", "resources/directory/read"])
    def test_looks_for_no_address_that_is_too_long(self, write: Write, method: str) -> None:
        client = Client(served(write({"refunds/SKILL.md": FRONT})))
        error = client.request(method, {"uri": f"skill://{'a' * 3000}"}).error
        assert (error.code, "aaaa" in error.message) == (-32602, False)
