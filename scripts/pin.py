"""What scripts/pin runs: the commits of actions and the digests of images, written where a build takes them."""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parents[1]

FILES = (
    "Dockerfile",
    "mrtr_server/cli/project_files/Dockerfile.txt",
    ".github/workflows/release.yml",
    "mrtr_server/cli/project_files/ci.yml.txt",
)
"""The files that take actions and images."""

GITHUB = "https://github.com"
REGISTRY = "https://registry-1.docker.io"

ACTION = re.compile(
    r"(?P<use>uses: (?P<action>[\w.-]+/[\w.-]+)@)(?P<commit>\S+)(?: +# (?P<version>v\S+))?$", re.MULTILINE
)
"""A line of a workflow that uses an action: at a tag, or at a commit with its version behind it."""

IMAGE = re.compile(
    r"(?P<begin>^FROM (?P<image>[a-z0-9./_-]+):(?P<tag>[\w.-]+))(?:@(?P<digest>\S+))?(?= |$)", re.MULTILINE
)
"""A line of a Dockerfile that begins with an image: at a tag, or at a tag and a digest."""

_MANIFESTS = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"
_RELEASE = re.compile(r"refs/tags/(v(\d+)\.(\d+)\.(\d+))(\^\{\})?")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_SECONDS = 30


@cache
def newest_release(github: str, action: str, major: str) -> tuple[str, str]:
    """Return the newest release of a major version of an action, and its commit.

    Args:
        github: the URL that the action's name is below.
        action: its owner and its name.
        major: the version, such as `v4`.

    Raises:
        SystemExit: there is none.
    """
    command = ["git", "ls-remote", "--tags", f"{github}/{action}", f"refs/tags/{major}.*"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)  # noqa: S603
    found: dict[tuple[int, ...], tuple[str, str]] = {}
    for line in done.stdout.splitlines():
        commit, _, name = line.partition("\t")
        if release := _RELEASE.fullmatch(name):
            number = tuple(map(int, release.groups()[1:4]))
            if number not in found or release[5]:  # of an annotated tag, the second line has the commit
                found[number] = release[1], commit
    if not found:
        raise SystemExit(f"{action}: {github} has no release of {major}")
    return found[max(found)]


@cache
def digest_of(registry: str, image: str, tag: str) -> str:
    """Return the digest of an image for all platforms: that of the manifest that the registry sends.

    Args:
        registry: its URL.
        image: the name of the image; one without an owner is one of Docker's own.
        tag: its tag.

    Raises:
        SystemExit: the registry sends something else than it says.
    """
    name = image if "/" in image else f"library/{image}"
    url = f"{registry}/v2/{name}/manifests/{tag}"
    headers = {"Accept": _MANIFESTS}
    try:
        sent, body = _get(url, headers)
    except HTTPError as error:
        if error.code != 401:
            raise
        challenge = dict(_CHALLENGE.findall(error.headers["WWW-Authenticate"]))
        asked = urlencode({"service": challenge["service"], "scope": f"repository:{name}:pull"})
        token = json.loads(_get(f"{challenge['realm']}?{asked}", {})[1])["token"]
        sent, body = _get(url, {**headers, "Authorization": f"Bearer {token}"})
    digest = f"sha256:{sha256(body).hexdigest()}"
    if sent.get("Docker-Content-Digest", digest) != digest or "manifests" not in json.loads(body):
        raise SystemExit(f"{image}:{tag}: {registry} did not send the list of its manifests")
    return digest


def _get(url: str, headers: Mapping[str, str]) -> tuple[Mapping[str, str], bytes]:
    with urlopen(Request(url, headers=dict(headers)), timeout=_SECONDS) as response:  # noqa: S310  the URLs are ours
        return response.headers, response.read()


def pin(text: str, github: str, registry: str) -> str:
    """Return the text of a file with each action at a commit, and each image at a digest."""
    return IMAGE.sub(partial(_pinned_image, registry), ACTION.sub(partial(_pinned_action, github), text))


def _pinned_action(github: str, line: re.Match[str]) -> str:
    version, commit = newest_release(github, line["action"], (line["version"] or line["commit"]).partition(".")[0])
    return f"{line['use']}{commit} # {version}"


def _pinned_image(registry: str, line: re.Match[str]) -> str:
    return f"{line['begin']}@{digest_of(registry, line['image'], line['tag'])}"


def main() -> None:
    """Pin all files, or check them."""
    options = argparse.ArgumentParser(prog="scripts/pin", description="Pin actions by commit and images by digest.")
    options.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file would change")
    options.add_argument("--root", type=Path, default=ROOT, help="the folder of the files")
    options.add_argument("--github", default=GITHUB, help="where actions are")
    options.add_argument("--registry", default=REGISTRY, help="where images are")
    given = options.parse_args()
    changed = []
    for name in FILES:
        path: Path = given.root / name
        text = path.read_text("utf-8")
        pinned = pin(text, given.github, given.registry)
        if pinned != text:
            changed.append(name)
            if not given.check:
                path.write_text(pinned, "utf-8")
    for name in changed:
        print(f"{name} {'is not pinned to what is there now' if given.check else 'is pinned anew'}")
    sys.exit(1 if given.check and changed else 0)


if __name__ == "__main__":
    main()
