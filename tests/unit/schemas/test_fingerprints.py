"""Topology and recipe: what is in a fingerprint, and what never is."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.recipe import Recipe, path_matches
from snapfmt_schemas.redaction import redact
from snapfmt_schemas.topology import Topology, TopologyParticipant

Make = Callable[..., TopologyParticipant]


def test_participants_are_sorted_as_upstream_sorts_them(make_participant: Make) -> None:
    made = [
        make_participant("b", "resources"),
        make_participant("a", "model"),
        make_participant("z", "agent"),
        make_participant("b", "model"),
    ]
    order = [participant.order()[:2] for participant in Topology.of(made).participants]
    assert order == [("agent", "z"), ("model", "a"), ("model", "b"), ("resources", "b")]
    assert Topology.of(made).to_fingerprint() == Topology.of(made[::-1]).to_fingerprint()


def test_the_digest_is_upstreams(make_participant: Make) -> None:
    content = {
        "schema_version": 1,
        "participants": [
            {
                "participant": {
                    "server_name": "policy",
                    "component": "model",
                    "participant_name": "policy",
                },
                "schema_version": 1,
                "admission_states": ["accepting", "paused"],
                "checkpoint_mode": "export_restore",
                "concurrency_contract": "transactional_parallel",
                "multi_process": {"mode": "single_worker", "num_workers": 1},
                "instance_role": "policy",
            }
        ],
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    fingerprint = Topology.of([make_participant()]).to_fingerprint()
    assert fingerprint.name == "topology"
    assert fingerprint.content == content
    assert fingerprint.digest == "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def test_a_difference_names_the_server_and_the_field(make_participant: Make) -> None:
    one, two = make_participant("a", "model"), make_participant("b", "resources")
    other = two.model_copy(update={"checkpoint_mode": "restart_only"})
    found = Topology.of([one, two]).to_fingerprint()
    (line,) = found.differences(Topology.of([one, other]).to_fingerprint())
    assert line.startswith(f"topology.participants.resources/b/{two.participant.participant_name}.")
    assert line.endswith("checkpoint_mode: 'export_restore' != 'restart_only'")
    # A server more, in the middle, makes none of the others differ.
    (line,) = found.differences(
        Topology.of([one, make_participant("aa", "model"), two]).to_fingerprint()
    )
    assert "model/aa/" in line
    assert "absent !=" in line


def test_participants_in_another_order_differ(make_participant: Make) -> None:
    content = (
        Topology.of([make_participant("a", "model"), make_participant("b", "resources")])
        .to_fingerprint()
        .content
    )
    turned = {**content, "participants": content["participants"][::-1]}
    left, right = Fingerprint.of("topology", content), Fingerprint.of("topology", turned)
    assert left.differences(left) == ()
    assert left.differences(right) != ()


def test_unsorted_or_repeated_participants_are_refused(make_participant: Make) -> None:
    a, b = make_participant("a"), make_participant("b")
    Topology(participants=(a, b))
    for wrong in ((b, a), (a, a)):
        with pytest.raises(ValidationError, match="sorted"):
            Topology(participants=wrong)


@pytest.mark.parametrize(
    "change",
    [
        {"admission_states": ["b", "a"]},
        {"admission_states": ["a", "a"]},
        {"checkpoint_mode": "other"},
        {"concurrency_contract": "other"},
        {"multi_process": {"mode": "single_worker", "num_workers": 0}},
        {"instance_role": "other"},
        {"features": ["x"]},
    ],
)
def test_wrong_participants_are_refused(change: dict[str, Any], make_participant: Make) -> None:
    value = make_participant().model_dump(mode="json")
    TopologyParticipant.model_validate(value)
    with pytest.raises(ValidationError):
        TopologyParticipant.model_validate(value | change)


@pytest.mark.parametrize(
    ("glob", "path", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a", "a.b", False),
        ("*", "a", True),
        ("*", "a.b", False),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.c", False),
        ("*_port", "http_port", True),
        ("*_port", "port_x", False),
        ("**.key", "key", True),
        ("**.key", "a.b.key", True),
        ("**.key", "a.key.b", False),
        ("a.**", "a", True),
        ("a.**", "a.b.c", True),
        ("a.**.z", "a.z", True),
        ("a.**.z", "a.b.c.z", True),
        ("a.**.z", "b.z", False),
        ("**.**.x", "x", True),
        ("**", "a.b", True),
    ],
)
def test_globs(glob: str, path: str, expected: bool) -> None:
    assert path_matches(tuple(path.split(".")), tuple(glob.split("."))) is expected


def test_many_double_stars_stay_fast() -> None:
    path = ("a",) * 200
    assert not path_matches(path, ("**", "a") * 40 + ("b",))


CONFIG: dict[str, Any] = {
    "policy": {
        "model": "m",
        "optimizer": {"lr": 1e-6},
        "tokenizer": {"pad_token": "<pad>", "max_tokens": 5},
    },
    "env": [{"url": "u", "api_key": "k1", "port": 5}, {"headers": {"Cookie": "k2"}}],
    "hf_token": "k3",
    "cluster": {"nodes": 4},
    "judge": {"auth_token": "k4", "password": "k5", "OPENAI_API_KEY": "k6"},
}


def test_a_recipe_has_neither_secrets_nor_excluded_paths() -> None:
    recipe = Recipe.of(CONFIG)
    assert recipe.config == {
        "policy": {"model": "m", "tokenizer": {"pad_token": "<pad>", "max_tokens": 5}},
        "env": [{"url": "u"}, {"headers": {}}],
        "judge": {},
    }
    assert CONFIG["hf_token"] == "k3"


def test_a_recipe_hides_what_is_secret_in_another_way() -> None:
    config = {
        "db": "postgres://u:k@h/d",
        "sent": [["Cookie", "k"]],
        "call": {"arguments": '{"password": "k"}'},
    }
    recipe = Recipe.of(config)
    assert recipe.config == {
        "db": "[redacted]",
        "sent": [["Cookie", "[redacted]"]],
        "call": {"arguments": '{"password": "[redacted]"}'},
    }
    assert redact(recipe.to_fingerprint().content)[1] == (), "a publication takes it"
    with pytest.raises(ValueError, match=r"Recipe\.of"):
        Recipe(config=config)


def test_only_what_counts_changes_the_fingerprint() -> None:
    base = Recipe.of(CONFIG).to_fingerprint()
    assert base.name == "recipe"
    assert Recipe.of(CONFIG | {"hf_token": "other", "logger": {}}).to_fingerprint() == base
    without = {key: value for key, value in CONFIG.items() if key != "hf_token"}
    assert Recipe.of(without).to_fingerprint() == base
    changed = Recipe.of(CONFIG | {"policy": {"model": "n"}}).to_fingerprint()
    assert changed.digest != base.digest
    assert any("policy.model" in line for line in base.differences(changed))


def test_the_exclusions_are_part_of_the_recipe() -> None:
    config = {"a": 1}
    one, two = Recipe.of(config, []), Recipe.of(config, ["b"])
    assert one.to_fingerprint().digest != two.to_fingerprint().digest


@pytest.mark.parametrize(
    "value",
    [
        {"excluded_paths": [], "config": {"a": {"api_key": "k"}}},
        {"excluded_paths": ["a"], "config": {"a": 1}},
        {"excluded_paths": ["b", "a"], "config": {}},
        {"excluded_paths": ["a..b"], "config": {}},
        {"excluded_paths": [], "config": {"a": (1,)}},
    ],
)
def test_an_unclean_recipe_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Recipe.model_validate(value)


def test_a_configuration_that_is_not_json_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON"):
        Recipe.of({"a": {1, 2}})
