"""What is secret by its name, and what is not."""

import copy
import json
from typing import Any

import pytest

from snapfmt_schemas._base import Record
from snapfmt_schemas.agent import AgentBoundaryRecord, PendingModel
from snapfmt_schemas.redaction import REDACTED, redact, redact_record, verdict, words
from snapfmt_schemas.registry import MODELS
from snapfmt_schemas.rows import ROW_SCHEMAS

SECRET_NAMES = """
cookie cookies Cookie set-cookie Set-Cookie model_server_cookies Authorization
Proxy-Authorization api_key apiKey api-key X-Api-Key OPENAI_API_KEY APIKey apikey access_token
auth_token hf_token HF_TOKEN refreshToken id_token GITHUB_TOKEN AWS_SESSION_TOKEN
NEMO_GYM_CHECKPOINT_CONTROL_TOKEN token password db_password passwd client_secret secret
credentials aws_secret_access_key private_key auth basic_auth bearer connection_string
access_tokens jwt
pwd PGPASSWORD MYSQL_PWD mypassword userpasswd password1 apikeys secretkey accesskey sshkey
openai_key wandb_key anthropic_key hf_key OPENAI_KEY openaikey OpenAIKey authtoken accesstoken
refreshtoken csrftoken cookiejar hf_token_2 HF_TOKEN_2_1 hf_token2 api_key2 token1 tokenA token_1
access_token_value authtoken_value otp user_otp secret_word
storage_options storageOptions environ os.environ env_vars environment_variables envVars
"""
PLAIN_NAMES = """
token_ids token_mask token_ids_delta num_tokens max_tokens max_new_tokens total_tokens tokens
prompt_tokens completion_tokens pad_token eos_token next_token next_page_token tokenizer
tokenizer_path token_count key capture_key staging_key prompt author session_id url
api_key_env credentials_path cookie_policy password_file keys monkey secretary
primary_key sort_key staging_keys signature function_signature thought_signature word pad_token_2
password_file_2 token_value hf_key_mapping openai_model donkey hotkey 2 tokenization tokenAt
env environment storage options env_name environments
"""


@pytest.mark.parametrize("name", SECRET_NAMES.split())
def test_secret_names(name: str) -> None:
    value = {"a": [{name: "hunter2", "other": "x"}]}
    clean, paths = redact(value)
    assert clean == {"a": [{name: REDACTED, "other": "x"}]}
    assert paths == (f"a[0].{name}",)


@pytest.mark.parametrize("name", PLAIN_NAMES.split())
def test_plain_names(name: str) -> None:
    value = {name: "text", "n": {name: [1, "x"]}}
    assert redact(value) == (value, ())


@pytest.mark.parametrize(
    "value",
    [
        {"token": " the", "logprob": -0.5},
        {"token": "a", "bytes": [97]},
        {"token": 15},
        {"eos_token_id": 2, "auth_token": 7},
        {"password": None, "secret": "", "use_auth": True, "cookie": False},
        {"headers": [["accept", "x"]]},
        ["authorization", "cookie"],
        ["authorization", "x", "y"],
        ["author", "x"],
        ["token", "x"],
        {"token": "a", "bytes": None},
        {"token": "a", "token_id": 5},
        {"token": "a", "rank": 1},
        {"token": "a", "top_logprobs": []},
        "authorization: x",
        None,
    ],
)
def test_plain_values(value: Any) -> None:
    assert redact(value) == (value, ())


def test_what_is_under_a_secret_name_keeps_its_shape() -> None:
    value = {"cookies": {"sid": "a", "n": 5, "flags": [True, None, "b"]}}
    clean, paths = redact(value)
    assert clean == {"cookies": {"sid": REDACTED, "n": REDACTED, "flags": [True, None, REDACTED]}}
    assert paths == ("cookies.flags[2]", "cookies.n", "cookies.sid")


def test_a_token_object_keeps_its_numbers() -> None:
    clean, _ = redact({"session_token": {"value": "a", "ttl": 5}})
    assert clean == {"session_token": {"value": REDACTED, "ttl": 5}}


def test_pairs_of_headers() -> None:
    clean, paths = redact({"headers": [["Authorization", "Bearer x"], ["accept", "y"]]})
    assert clean == {"headers": [["Authorization", REDACTED], ["accept", "y"]]}
    assert paths == ("headers[0][1]",)


@pytest.mark.parametrize(
    "name",
    ["authorization", "Proxy-Authorization", "cookie", "Set-Cookie", "X-API-Key", "api-key"],
)
def test_pairs_of_headers_anywhere(name: str) -> None:
    clean, paths = redact({"sent": [[name, "s"], ["accept", "y"]]})
    assert clean == {"sent": [[name, REDACTED], ["accept", "y"]]}
    assert paths == ("sent[0][1]",)
    assert redact([name, ["s"]])[0] == [name, [REDACTED]]


@pytest.mark.parametrize("name", ["bytes", "token_id", "rank"])
def test_a_text_beside_a_token_does_not_make_it_a_piece_of_text(name: str) -> None:
    clean, paths = redact({"token": "s", name: "tok_1"})
    assert clean == {"token": REDACTED, name: "tok_1"}
    assert paths == ("token",)


@pytest.mark.parametrize("name", ["arguments", "output"])
def test_json_text_of_a_tool_call(name: str) -> None:
    call = {"url": "x", "headers": {"Authorization": "Bearer s", "n": [1, 2.5]}}
    clean, paths = redact({"type": "function_call", name: json.dumps(call)})
    assert json.loads(clean[name]) == {
        "url": "x",
        "headers": {"Authorization": REDACTED, "n": [1, 2.5]},
    }
    assert paths == (f"{name}:headers.Authorization",)
    assert redact(clean) == (clean, ())
    assert redact({name: '[["cookie", "s"]]'})[0] == {name: f'[["cookie", "{REDACTED}"]]'}


@pytest.mark.parametrize(
    "text",
    [
        '{"x":  1, "token": 5 }',
        "{not json, password: s}",
        '"password"',
        "",
        "[" * 100_000,
        '{"n": ' + "1" * 5000 + "}",
    ],
)
def test_text_of_a_tool_call_without_a_secret_stays_as_it_is(text: str) -> None:
    assert redact({"arguments": text, "n": [text]}) == ({"arguments": text, "n": [text]}, ())


def test_a_url_with_a_password_whatever_its_name() -> None:
    for url in ("postgres://user:s@host/db", "s3://key:s@bucket", "https://:s@host:80/?x=1"):
        assert redact({"place": url, "n": [url]})[0] == {"place": REDACTED, "n": [REDACTED]}
    for text in (
        "https://host:80/path@2",
        "ssh://user@host",
        "a://b:c",
        "see https://user:s@host for it",
        "mailto:a@b",
        "a:b@c",
    ):
        assert redact({"place": text}) == ({"place": text}, ())


def test_extra_names_whatever_their_case() -> None:
    clean, paths = redact({"sessionId": "s", "session-id": 4, "x": 1}, ["session_id"])
    assert clean == {"sessionId": REDACTED, "session-id": REDACTED, "x": 1}
    assert paths == ("session-id", "sessionId")


def test_the_value_is_not_changed_and_order_is_kept() -> None:
    value = {"z": {"password": "p"}, "a": [1, {"m": 2}]}
    before = copy.deepcopy(value)
    clean, _ = redact(value)
    assert value == before
    assert list(clean) == ["z", "a"]


def test_redacting_twice_changes_nothing_more() -> None:
    once, _ = redact({"password": "p", "cookies": {"a": "b"}})
    assert redact(once) == (once, ())


def test_depth_has_no_bound() -> None:
    value: Any = {"password": "p"}
    for _ in range(20_000):
        value = [value]
    clean, paths = redact(value)
    assert len(paths) == 1
    while isinstance(clean, list):
        clean = clean[0]
    assert clean == {"password": REDACTED}


def boundary(cookies: dict[str, Any]) -> AgentBoundaryRecord:
    return AgentBoundaryRecord(
        rollout_id="r",
        attempt_index=0,
        boundary_index=0,
        turn_index=0,
        boundary_kind="pending_model",
        pending_model=PendingModel(model_call_id="c", response={}, model_server_cookies=cookies),
        created_at=0.0,
    )


def test_a_redacted_record_is_valid() -> None:
    clean, paths = redact_record(boundary({"sid": "s"}))
    assert clean.pending_model is not None
    assert clean.pending_model.model_server_cookies == {"sid": REDACTED}
    assert paths == ("pending_model.model_server_cookies.sid",)


def test_a_record_without_secrets_is_itself() -> None:
    record = boundary({})
    assert redact_record(record)[0] is record


def names(schema: Any) -> set[str]:
    """Every field name in a JSON Schema."""
    if isinstance(schema, list):
        return {name for item in schema for name in names(item)}
    if not isinstance(schema, dict):
        return set()
    found = set(schema["properties"]) if isinstance(schema.get("properties"), dict) else set()
    return found.union(*(names(item) for item in schema.values())) if schema else found


def test_no_own_field_but_the_cookies_counts_as_secret() -> None:
    own = {rule.name for rows in ROW_SCHEMAS.values() for rule in rows.columns}
    for model in MODELS.values():
        own |= names(model.model_json_schema())
    assert len(own) > 150
    assert {name for name in own if verdict(name) != "plain"} == {"model_server_cookies"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("apiKey", ("api", "key")),
        ("APIKey", ("api", "key")),
        ("HF_TOKEN", ("hf", "token")),
        ("a.b-c d", ("a", "b", "c", "d")),
        ("", ()),
    ],
)
def test_words(name: str, expected: tuple[str, ...]) -> None:
    assert words(name) == expected


def test_examples_have_no_secret(examples: dict[str, Record]) -> None:
    for record in examples.values():
        assert redact_record(record)[1] == ()
