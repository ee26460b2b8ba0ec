"""What a person sees: the question before each login, and why one did not come to its end. Nothing in it runs."""

from html import escape

from starlette.responses import HTMLResponse, Response

from .clients import host_of, is_on_this_computer

_STYLE = """
:root{color-scheme:light dark;--line:#c8c8d0;--text:#1b1b1f;--back:#fff;--quiet:#55555e;--main:#1a56c4;--on:#fff}
@media(prefers-color-scheme:dark){
:root{--line:#4a4a55;--text:#ececf1;--back:#17171b;--quiet:#b4b4bf;--main:#8ab4ff;--on:#10131a}}
body{font:1.05rem/1.5 system-ui,sans-serif;max-width:32rem;margin:10vh auto;padding:0 1rem}
body{color:var(--text);background:var(--back)}
h1{font-size:1.4rem;overflow-wrap:anywhere}
dl{border:1px solid var(--line);border-radius:.5rem;padding:.25rem 1rem}
dt{color:var(--quiet);margin-top:.5rem}dd{margin:0 0 .5rem;overflow-wrap:anywhere}ul{margin:0;padding-left:1.2rem}
.buttons{display:flex;gap:.75rem;flex-wrap:wrap;margin-top:1.5rem}
button,a.button{font:inherit;padding:.6rem 1.4rem;border-radius:.4rem;border:2px solid var(--main)}
button,a.button{cursor:pointer;background:none;color:var(--main);text-decoration:none}
button.yes{background:var(--main);color:var(--on)}
button:focus-visible,a:focus-visible{outline:3px solid var(--text);outline-offset:2px}
p.warning{border-left:.25rem solid #c77700;padding-left:.75rem}
"""

_HEADERS = {
    "Cache-Control": "no-store",
    # Of this address other sites learn nothing. With no-referrer, the form would be sent with `Origin: null`.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # No form-action: Chromium applies it to each redirect that follows the form, to the provider, and on to the client.
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
    ),
}


def page(status: int, title: str, body: str) -> Response:
    html = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style><main><h1>{escape(title)}</h1>{body}</main></html>\n"
    )
    return HTMLResponse(html, status, _HEADERS)


def failed(status: int, why: str, back: str = "") -> Response:
    """Return a page about a login that did not come to its end; `back` takes the error to the client."""
    link = ""
    if back:
        link = (
            f'<p class="buttons"><a class="button" rel="noreferrer" href="{escape(back)}">'
            f"Back to {escape(host_of(back))}</a></p>"
        )
    return page(status, "This login did not work", f"<p>{escape(why)}</p>{link}")


def consent(
    server: str, client: str, host: str, redirect: str, scopes: list[str], provider: str, action: str, question: str
) -> Response:
    """Return the question whether a client may act for the person.

    The name of a client is what it calls itself. `host` vouches for it; empty where nobody does.
    """
    named = client or host or "An application"
    listed = "".join(f"<li>{escape(scope)}</li>" for scope in scopes)
    rows = [("Application", escape(named)), ("Known by", escape(host) if host else "nobody but itself")]
    rows.append(("You go back to", f"<strong>{escape(host_of(redirect))}</strong>"))
    rows.append(("It may", f"<ul>{listed}</ul>" if listed else f"use {escape(server)} in your name"))
    rows.append(("You log in at", escape(provider)))
    warning = ""
    if is_on_this_computer(redirect):
        warning = (
            '<p class="warning">Whatever runs on this computer could have asked for this. Go on only if you have just '
            "started it yourself.</p>"
        )
    table = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows)
    form = (
        f'<form method="post" action="{escape(action)}">'
        f'<input type="hidden" name="question" value="{escape(question)}"><p class="buttons">'
        '<button class="yes" name="answer" value="yes">Allow</button>'
        '<button name="answer" value="no">Do not allow</button></p></form>'
    )
    return page(200, f"May {named} use {server} in your name?", f"<dl>{table}</dl>{warning}{form}")
