"""What is secret by its name, and how it is taken out before anything is stored.

Names decide: values are opaque, and a guess at text would change conversations. Two values are
looked into, since what they hold has names as well: JSON text of a tool call, and a URL with a
password. Numbers under a `token` name stay, since they are counts and ids; so do the tokens of a
tokenizer.
"""

import json
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, Literal, TypeVar

from snapfmt_schemas._base import Record
from snapfmt_schemas.lines import from_value, to_value

R = TypeVar("R", bound=Record)


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


REDACTED: Final = "[redacted]"
"""What stands in the place of a secret."""

SECRET_WORDS: Final = _word_set(
    "password passwords passwd passphrase pwd secret secrets credential credentials "
    "authorization cookie cookies cookiejar bearer apikey jwt dsn otp environ"
)
"""A name that has one of these words is secret."""
SECRET_ENDINGS: Final = ("password", "passwords", "passwd", "passphrase")
"""So is one with a word that ends so (`PGPASSWORD`)."""
SECRET_PAIRS: Final = frozenset(
    {
        ("api", "key"),
        ("api", "keys"),
        ("access", "key"),
        ("account", "key"),
        ("private", "key"),
        ("secret", "key"),
        ("signing", "key"),
        ("encryption", "key"),
        ("master", "key"),
        ("shared", "key"),
        ("ssh", "key"),
        ("connection", "string"),
        ("storage", "options"),
        ("environment", "variables"),
        ("env", "variables"),
        ("env", "vars"),
    }
)
"""So is one that has two of these side by side."""
VENDORS: Final = _word_set(
    "openai anthropic wandb hf huggingface ngc nvidia github gitlab azure aws gcp gemini mistral "
    "cohere groq openrouter deepseek serper tavily"
)
"""So is one that ends in one of these and `key`."""
HEADER_NAMES: Final = _word_set(
    "authorization proxy-authorization cookie set-cookie x-api-key api-key"
)
"""The value of a pair `[name, value]` with one of these is secret, wherever the pair stands."""
INNOCENT_ENDINGS: Final = _word_set(
    "url uri type path paths file files env name mode enabled required scheme endpoint policy "
    "ttl expiry expires length len count ids mask id status"
)
"""A name with one of these as its last word speaks about a secret and is none."""
TOKENIZER_WORDS: Final = _word_set(
    "pad padding eos bos unk mask sep cls eot eom stop start end begin special image video audio "
    "text next last first prev previous current new think thinking additional extra draft "
    "sampled target fill placeholder page continuation pagination num max min per n total "
    "prompt completion input output cached reasoning tool bad word single accepted rejected "
    "generated decoded chosen selected"
)
"""Words before `token` that make it a piece of text or a place in a list."""
_TOKEN_WORDS = _word_set(
    "access auth authentication bearer refresh hf hub api oauth session security csrf xsrf "
    "github gitlab wandb ngc"
)
JSON_TEXTS: Final = frozenset({"arguments", "output"})
"""Names under which a tool call and its result have an object as JSON text."""
_URL_WITH_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#:@]*:[^\s/?#@]+@\S*")
_LOGPROBS = ("logprob", "logprobs", "top_logprobs")
_TOKEN_FACTS = ("bytes", "token_id", "rank")
_JOINED = (
    {"".join(pair): pair for pair in SECRET_PAIRS}
    | {f"{vendor}key": (vendor, "key") for vendor in VENDORS}
    | {f"{word}{end}": (word, end) for word in _TOKEN_WORDS for end in ("token", "tokens")}
)
"""What is also written as one word (`apikeys`, `openaikey`, `authtoken`)."""
_LETTERED = re.compile(r"(?<=[Tt]oken)[A-Z]$")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATOR = re.compile(r"[^A-Za-z0-9]+")

_NAME_END = 256

Verdict = Literal["plain", "token", "bare-token", "secret"]


def words(name: str) -> tuple[str, ...]:
    """The lower-case words of a name in snake, kebab, dotted or camel case."""
    parts = _SEPARATOR.split(_CAMEL.sub("_", name))
    return tuple(part.lower() for part in parts if part)


@lru_cache(maxsize=4096)
def verdict(name: str) -> Verdict:
    """What a name alone says; the two token verdicts also depend on the value."""
    parts = _normal_words(name)
    if not parts or parts[-1] in INNOCENT_ENDINGS:
        return "plain"
    if not SECRET_WORDS.isdisjoint(parts) or parts[-1] == "auth":
        return "secret"
    if any(part.endswith(SECRET_ENDINGS) for part in parts):
        return "secret"
    if any(pair in SECRET_PAIRS for pair in pairwise(parts)):
        return "secret"
    if parts[-1] == "key" and parts[-2:-1] and parts[-2] in VENDORS:
        return "secret"
    if parts[-2:] == ("token", "value") and parts[-3:-2] and parts[-3] in _TOKEN_WORDS:
        return "token"
    before = parts[-2] if len(parts) > 1 else ""
    if parts[-1] == "token":
        if not before:
            return "bare-token"
        return "plain" if before in TOKENIZER_WORDS else "token"
    if parts[-1] == "tokens" and before in _TOKEN_WORDS:
        return "token"
    return "plain"


def _normal_words(name: str) -> tuple[str, ...]:
    """Words without the numbers that tell names apart, and with joined words taken apart."""
    parts = list(words(_LETTERED.sub("", name)))
    while parts and parts[-1].isdigit():
        parts.pop()
    # A vendor's own capitals split its name (`OpenAIKey`).
    if joined := _JOINED.get("".join(parts)):
        return joined
    found: list[str] = []
    for part in parts:
        plain = part.rstrip("0123456789") or part
        found += _JOINED.get(plain, (plain,))
    return tuple(found)


def secret_kind(
    name: str, siblings: Mapping[str, Any], extra: Collection[tuple[str, ...]] = ()
) -> Literal["", "text", "all"]:
    """What is secret under a name: nothing, its text, or its numbers too.

    `siblings` is the object that has the name: `token` beside `logprob` is a piece of text.
    """
    if extra and words(name) in extra:
        return "all"
    # The end of a name decides; a hostile one must not fill the cache with megabytes.
    found = verdict(name[-_NAME_END:])
    if found == "secret":
        return "all"
    if found == "token":
        return "text"
    if found == "bare-token" and not _is_text_piece(siblings):
        return "text"
    return ""


def _is_text_piece(siblings: Mapping[str, Any]) -> bool:
    """Whether an object with `token` is one token of a model's output."""
    if any(name in siblings for name in _LOGPROBS):
        return True
    # Text there is an id of another kind: that of a credential.
    return any(
        name in siblings and not isinstance(siblings[name], (str, dict, bool))
        for name in _TOKEN_FACTS
    )


def redact(value: Any, extra_keys: Collection[str] = ()) -> tuple[Any, tuple[str, ...]]:
    """A copy of a JSON value without its secrets, and the paths of what was replaced.

    An object or array under a secret name keeps its shape and its own names, so that a
    record stays valid; each text and number in it is replaced. Null, true, false and empty
    text stay. Pairs `[name, value]` count as well: inside a name that ends in `headers` all of
    them, elsewhere those of `HEADER_NAMES`. So does JSON text under one of `JSON_TEXTS`; the path
    of what was in it stands behind its own and a colon.

    Args:
        value: Any JSON value; it is not changed.
        extra_keys: Names that are secret here too, whatever their case and separators.
    """
    extra = frozenset(words(key) for key in extra_keys)
    paths: list[str] = []
    root: list[Any] = [None]
    # A stack and not recursion: agents own these values, and their depth has no bound.
    # Each item: the value, where its copy goes, its path, what is secret in it, in headers.
    todo: list[tuple[Any, Any, Any, str, str, bool]] = [(value, root, 0, "", "", False)]
    while todo:
        node, holder, place, path, scope, headers = todo.pop()
        if isinstance(node, dict):
            copy: dict[str, Any] = dict.fromkeys(node)
            holder[place] = copy
            for key, child in node.items():
                kind = scope if scope == "all" else secret_kind(key, node, extra) or scope
                below = f"{path}.{key}" if path else key
                inside = headers or key[-7:].lower() == "headers"
                todo.append((child, copy, key, below, kind, inside))
        elif isinstance(node, list):
            items: list[Any] = [None] * len(node)
            holder[place] = items
            pair = _header_secret(node, extra, headers)
            for index, child in enumerate(node):
                kind = pair if pair and index == 1 else scope
                todo.append((child, items, index, f"{path}[{index}]", kind, headers))
        elif _is_secret_leaf(node, scope):
            holder[place] = REDACTED
            paths.append(path)
        else:
            holder[place], within = _looked_into(node, place, extra_keys)
            paths += [f"{path}:{item}" for item in within]
    return root[0], tuple(sorted(paths))


def redact_record(record: R, extra_keys: Collection[str] = ()) -> tuple[R, tuple[str, ...]]:
    """The record without its secrets; itself when it has none."""
    value, paths = redact(to_value(record), extra_keys)
    return (from_value(type(record), value), paths) if paths else (record, paths)


def _header_secret(node: list[Any], extra: Collection[tuple[str, ...]], headers: bool) -> str:
    if len(node) != 2 or not isinstance(node[0], str):
        return ""
    if headers:
        return secret_kind(node[0], {}, extra)
    return "all" if _is_header_name(node[0]) and not _is_header_name(node[1]) else ""


def _is_header_name(value: Any) -> bool:
    # A list of two header names is no pair.
    return isinstance(value, str) and value.lower() in HEADER_NAMES


def _is_secret_leaf(node: Any, scope: str) -> bool:
    if isinstance(node, str) and "@" in node and _URL_WITH_PASSWORD.fullmatch(node):
        return True
    if not scope or node is None or isinstance(node, bool) or node in ("", REDACTED):
        return False
    return scope == "all" or isinstance(node, str)


def _looked_into(
    node: Any, name: str | int, extra_keys: Collection[str]
) -> tuple[Any, tuple[str, ...]]:
    """A leaf without the secrets that JSON text in it names; unchanged where it has none."""
    if name not in JSON_TEXTS or not isinstance(node, str) or node.lstrip()[:1] not in ("{", "["):
        return node, ()
    try:
        clean, within = redact(json.loads(node), extra_keys)
        return (json.dumps(clean), within) if within else (node, ())
    except (ValueError, RecursionError):
        return node, ()
