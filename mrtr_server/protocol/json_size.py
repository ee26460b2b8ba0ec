"""The number of values in JSON, counted in its bytes before it is parsed."""


def has_more_values(body: bytes, most: int) -> bool:
    """Check whether a JSON text has more values than are allowed.

    A number of values costs many times its bytes once it is parsed, and each is then looked at more than once.

    Args:
        body: what is to be parsed; it need not be JSON.
        most: how many values are allowed, an empty array or object counting twice.

    Returns:
        True if there are more. Text that could not hold as many, by its length alone, is not looked at.
    """
    if len(body) < 2 * most:
        return False
    if most_values(body) <= most:
        return False
    # Commas and brackets within strings were counted, too: count again without the strings.
    body = body.replace(rb"\\", b"").replace(rb"\"", b"")
    if body.count(b'"') > 4 * most:  # each value has a string and a key at most
        return True
    return most_values(b"".join(body.split(b'"')[::2])) > most


def most_values(body: bytes) -> int:
    """Return how many values there are at most: the outermost, and in each array or object one more than commas."""
    return 1 + body.count(b",") + body.count(b"[") + body.count(b"{")
