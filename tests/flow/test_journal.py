"""The journal: what it keeps, what it belongs to, how long it lives and how much it may hold."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mrtr_server import Limits, Principal
from mrtr_server.crypto.digests import digest
from mrtr_server.errors import InvalidRequestState, OverBudget
from mrtr_server.flow.journal import _FRAME_BYTES, ANSWERS_OF_A_KEY, UNSET, Journal, Step, binding
from mrtr_server.protocol.messages import Call, Question

NOW = 1_700_000_000.0
LIMITS = Limits()

CALL = Call(
    method="tools/call",
    params={},
    target="deploy",
    arguments={"service": "api", "replicas": 3},
    principal=Principal("alice", "https://issuer.example", "cli"),
)
HERE = binding("weather", CALL)

keys = st.text(max_size=8)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**80), max_value=2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10)
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))
objects = st.dictionaries(keys, values, max_size=3)
digests = st.text("abcdefghijklmnopqrstuvwxyz-_.", max_size=45)
digested = st.dictionaries(keys, digests, max_size=2)
steps = st.builds(
    Step, function=keys, arguments=digested, result=values, failed=st.lists(digested, max_size=2), exact=values
)
answers = st.dictionaries(digests, objects, min_size=1, max_size=ANSWERS_OF_A_KEY)
journals = st.builds(
    Journal,
    started=st.floats(min_value=0, max_value=NOW),
    flow_id=st.text("abc123-_", min_size=22, max_size=22),
    rounds=st.integers(0, 100),
    state_only=st.integers(0, 100),
    asked=st.dictionaries(keys, digests, max_size=3),
    answers=st.dictionaries(keys, answers, max_size=3),
    steps=st.dictionaries(keys, steps, max_size=3),
    state=st.just(UNSET) | values,
    handed_over=digests,
    single_use=st.booleans(),
    exact_state=values,
)
calls = st.builds(
    Call,
    method=st.sampled_from(["tools/call", "prompts/get", "resources/read"]),
    params=st.just({}),
    target=st.text(max_size=4),
    arguments=objects,
    principal=st.none() | st.builds(Principal, st.sampled_from("ab"), st.sampled_from("ab"), st.sampled_from("ab")),
)


def dump(journal: Journal, *, now: float = NOW, seconds: float = 3600.0, limits: Limits = LIMITS) -> bytes:
    return journal.dump(HERE, now, seconds, limits)


def refusal(payload: bytes, bound_to: list[str] = HERE, now: float = NOW) -> str:
    with pytest.raises(InvalidRequestState) as caught:
        Journal.load(payload, bound_to, now)
    return caught.value.reason


class TestPayload:
    @given(journals, calls, st.text(max_size=5))
    def test_a_journal_comes_back_as_it_was(self, journal: Journal, call: Call, audience: str) -> None:
        bound_to = binding(audience, call)
        payload = journal.dump(bound_to, NOW, 1.0, Limits(flow_seconds=2 * NOW))
        assert Journal.load(payload, bound_to, NOW) == journal

    @given(journals)
    def test_a_journal_without_a_state_of_the_handler_is_not_one_with_none(self, journal: Journal) -> None:
        journal.state = UNSET
        without = Journal.load(dump(journal, limits=Limits(flow_seconds=2 * NOW)), HERE, NOW)
        journal.state = None
        with_none = Journal.load(dump(journal, limits=Limits(flow_seconds=2 * NOW)), HERE, NOW)
        assert without.state is UNSET
        assert with_none.state is None

    @given(st.binary(max_size=100))
    def test_what_is_no_journal_is_refused(self, payload: bytes) -> None:
        assert refusal(payload) == "not a journal"

    @pytest.mark.parametrize("payload", [b"", b"null", b"[]", b"{}", b'{"v":1}', b"[" * 1000, b"NaN"])
    def test_json_that_is_no_journal_is_refused(self, payload: bytes) -> None:
        assert refusal(payload) == "not a journal"

    def test_a_journal_of_another_format_is_refused(self) -> None:
        payload = dump(Journal(NOW)).replace(b'"v":1', b'"v":2')
        assert refusal(payload) == "sealed by another version of the format"

    def test_a_journal_that_lacks_a_field_is_refused(self) -> None:
        assert refusal(dump(Journal(NOW)).replace(b'"q":', b'"Q":')) == "not a journal"

    def test_each_flow_has_an_id_of_its_own_that_stays(self) -> None:
        flows = [Journal(NOW) for _ in range(100)]
        ids = {journal.flow for journal in flows}
        assert len(ids) == 100
        assert {Journal.load(dump(journal), HERE, NOW).flow for journal in flows} == ids
        assert {journal.flow for journal in flows} == ids


class TestBinding:
    @pytest.mark.parametrize(
        ("part", "other"),
        [
            ("audience", binding("climate", CALL)),
            ("principal", binding("weather", replace(CALL, principal=None))),
            (
                "principal",
                binding("weather", replace(CALL, principal=Principal("bob", "https://issuer.example", "cli"))),
            ),
            (
                "principal",
                binding("weather", replace(CALL, principal=Principal("alice", "https://other.example", "cli"))),
            ),
            (
                "principal",
                binding("weather", replace(CALL, principal=Principal("alice", "https://issuer.example", "web"))),
            ),
            ("method", binding("weather", replace(CALL, method="prompts/get"))),
            ("target", binding("weather", replace(CALL, target="destroy"))),
            ("arguments", binding("weather", replace(CALL, arguments={"service": "api", "replicas": 4}))),
            ("arguments", binding("weather", replace(CALL, arguments={"service": "api"}))),
            ("arguments", binding("weather", replace(CALL, arguments={"service": "api", "replicas": "3"}))),
        ],
    )
    def test_a_state_of_another_call_is_refused_and_the_log_says_what_differs(
        self, part: str, other: list[str]
    ) -> None:
        payload = dump(Journal(NOW))
        other_part = "other arguments" if part == "arguments" else f"another {part}"
        assert refusal(payload, other) == f"belongs to {other_part}"
        assert Journal.load(payload, HERE, NOW).flow

    def test_a_state_of_nobody_is_not_one_of_somebody(self) -> None:
        nobody = binding("weather", replace(CALL, principal=None))
        payload = Journal(NOW).dump(nobody, NOW, 60, LIMITS)
        assert refusal(payload, HERE) == "belongs to another principal"

    def test_the_order_of_keys_and_the_spelling_of_whole_numbers_make_no_difference(self) -> None:
        same = binding("weather", replace(CALL, arguments={"replicas": 3.0, "service": "api"}))
        assert Journal.load(dump(Journal(NOW)), same, NOW).flow

    def test_what_is_not_bound_may_change_between_rounds(self) -> None:
        later = replace(CALL, params={"x": 1}, answers={"a": {}}, state="s", progress_token=7, request_id="2")
        assert Journal.load(dump(Journal(NOW)), binding("weather", later), NOW).flow

    @given(calls, calls)
    def test_two_calls_have_one_binding_exactly_where_they_are_the_same_call(self, one: Call, other: Call) -> None:
        def essence(call: Call) -> Any:
            return call.principal, call.method, call.target, digest(call.arguments)

        assert (binding("weather", one) == binding("weather", other)) == (essence(one) == essence(other))

    @given(calls, calls)
    @example(replace(CALL, target="\0deploy"), CALL)
    @example(replace(CALL, target="tools/call\0deploy"), replace(CALL, target="deploy\0"))
    def test_a_state_opens_exactly_for_the_calls_of_its_binding(self, one: Call, other: Call) -> None:
        payload = Journal(NOW).dump(binding("weather", one), NOW, 60, LIMITS)
        if binding("weather", one) == binding("weather", other):
            assert Journal.load(payload, binding("weather", other), NOW).flow
        else:
            assert refusal(payload, binding("weather", other)).startswith("belongs to ")

    def test_parts_that_run_into_each_other_are_told_apart(self) -> None:
        people = [
            Principal("ab", "c", ""),
            Principal("a", "bc", ""),
            Principal("a", "b", "c"),
            Principal("abc", "", ""),
        ]
        assert len({binding("weather", replace(CALL, principal=who))[1] for who in people}) == len(people)

    def test_a_binding_shows_neither_who_called_nor_with_what(self) -> None:
        # A codec may be one whose states the client can read.
        payload = dump(Journal(NOW))
        assert not [word for word in (b"alice", b"issuer", b"replicas") if word in payload]

    def test_where_it_was_traced_and_what_was_sent_of_its_result_stay_with_it(self) -> None:
        journal = Journal(NOW)
        journal.origin, journal.pieces, journal.shed = "00-ab-cd-01", 3, True
        assert json.loads(dump(journal))["l"] is True
        again = Journal.load(dump(journal), HERE, NOW)
        assert (again.origin, again.pieces, again.shed) == ("00-ab-cd-01", 3, True)
        again = Journal.load(dump(Journal(NOW)), HERE, NOW)
        assert (again.origin, again.pieces, again.shed) == ("", 0, False)

    def test_what_json_does_not_hold_is_beside_what_earlier_releases_read(self) -> None:
        journal = Journal(NOW, state="s")
        journal.steps["a"] = Step("m.a", {"x": "1"}, "****", [], ["validated", "secret"])
        journal.steps["b"] = Step("m.b", {}, 1)
        fields = json.loads(dump(journal))
        assert fields["s"] == {"a": ["m.a", {"x": "1"}, "****", []], "b": ["m.b", {}, 1, []]}
        assert (fields["j"], "z" in fields) == ({"a": ["validated", "secret"]}, False)
        journal.steps["a"].exact, journal.exact_state = None, ["validated", "s"]
        fields = json.loads(dump(journal))
        assert ("j" in fields, fields["h"], fields["z"]) == (False, "s", ["validated", "s"])

    def test_earlier_answers_are_in_a_payload_only_where_there_are_any(self) -> None:
        journal = Journal(NOW)
        journal.keep("who", "form.old.a", {"name": "ann"})
        assert "e" not in json.loads(dump(journal))
        journal.keep("who", "form.new.a", {"name": "bob"})
        assert json.loads(dump(journal))["e"] == {"who": [["form.old.a", {"name": "ann"}]]}

    def test_what_only_reads_like_a_confirmation_is_none(self) -> None:
        journal = Journal(NOW)
        journal.state = "confirm.message.shape"
        assert not Journal.load(dump(journal), HERE, NOW).single_use


class TestExpiry:
    def test_may_be_put_off(self) -> None:
        payload = dump(Journal(NOW), seconds=60)
        assert Journal.load(payload, HERE, NOW + 69, 10.0).expires == NOW + 70
        with pytest.raises(InvalidRequestState):
            Journal.load(payload, HERE, NOW + 70, 10.0)

    def test_a_state_can_be_redeemed_for_as_long_as_it_was_sealed_for(self) -> None:
        payload = dump(Journal(NOW), seconds=60)
        assert Journal.load(payload, HERE, NOW + 59.9).started == NOW
        assert refusal(payload, now=NOW + 60) == "expired"
        assert refusal(payload, now=NOW + 1e9) == "expired"

    @pytest.mark.parametrize("by_handler", [True, False])
    @pytest.mark.parametrize("by_state", [True, False])
    def test_one_that_is_redeemed_once_is_looked_up_for_a_minute_longer(self, by_handler: bool, by_state: bool) -> None:
        journal = Journal(NOW)
        journal.single_use = by_state
        payload, more = dump(journal, seconds=60), 60 * (by_handler or by_state)
        assert Journal.load(payload, HERE, NOW + 59.9 + more, single_use=by_handler).started == NOW
        with pytest.raises(InvalidRequestState) as refused:
            Journal.load(payload, HERE, NOW + 60 + more, single_use=by_handler)
        assert refused.value.reason == "expired"

    def test_the_life_of_the_flow_ends_it_sooner(self) -> None:
        day = Limits(flow_seconds=100)
        payload = dump(Journal(NOW), now=NOW + 90, seconds=60, limits=day)
        assert Journal.load(payload, HERE, NOW + 99.9).started == NOW
        assert refusal(payload, now=NOW + 100) == "expired"

    def test_no_round_makes_a_flow_younger(self) -> None:
        limits, now, journal = Limits(flow_seconds=100), NOW, Journal(NOW)
        for _ in range(3):
            payload = dump(journal, now=now, seconds=40, limits=limits)
            now += 30
            journal = Journal.load(payload, HERE, now)
        assert refusal(dump(journal, now=now, seconds=40, limits=limits), now=NOW + 100) == "expired"

    def test_the_clocks_of_replicas_may_differ_by_a_minute(self) -> None:
        payload = dump(Journal(NOW))
        assert Journal.load(payload, HERE, NOW - 60).started == NOW
        assert "clocks differ" in refusal(payload, now=NOW - 61)

    def test_the_call_is_checked_before_the_time(self) -> None:
        # So that the log says of a stolen state whose it was, however old it is.
        stolen = binding("weather", replace(CALL, principal=None))
        assert refusal(dump(Journal(NOW)), stolen, NOW + 1e9) == "belongs to another principal"


class TestBudgets:
    def test_a_flow_may_ask_as_often_as_its_limit_says(self) -> None:
        journal, limits = Journal(NOW), Limits(rounds=3)
        for number in range(1, 4):
            journal.count_round({"question": "digest"}, limits)
            assert journal.rounds == number
        with pytest.raises(OverBudget, match="more than 3 rounds") as caught:
            journal.count_round({"question": "digest"}, limits)
        assert caught.value.data == {"limit": "rounds", "value": 3}

    def test_the_count_travels_with_the_state(self) -> None:
        journal = Journal(NOW)
        for _ in range(LIMITS.rounds):
            journal.count_round({"question": "digest"}, LIMITS)
            journal = Journal.load(dump(journal), HERE, NOW)
        with pytest.raises(OverBudget, match="rounds"):
            journal.count_round({"question": "digest"}, LIMITS)

    def test_rounds_without_a_question_have_a_limit_of_their_own(self) -> None:
        journal, limits = Journal(NOW), Limits(state_only_rounds=2)
        for number in range(2):
            journal.steps[f"step_{number}"] = Step("app.build", {}, number)
            journal.count_round({}, limits)
        journal.steps["one more"] = Step("app.build", {}, None)
        with pytest.raises(OverBudget, match="more than 2 times without a question") as caught:
            journal.count_round({}, limits)
        assert caught.value.data == {"limit": "state_only_rounds", "value": 2}

    def test_a_round_without_a_question_counts_as_a_round_too(self) -> None:
        journal = Journal(NOW)
        journal.count_round({}, LIMITS)
        journal.count_round({"question": "digest"}, LIMITS)
        assert (journal.rounds, journal.state_only) == (2, 1)

    def test_a_question_in_between_is_progress(self) -> None:
        journal = Journal(NOW)
        for asked in ({}, {"question": "digest"}, {}):
            journal.count_round(asked, LIMITS)
            journal = Journal.load(dump(journal), HERE, NOW)
        assert journal.is_as_handed_over

    def test_a_flow_is_never_handed_over_twice_with_nothing_done_in_between(self) -> None:
        journal = Journal(NOW)
        journal.count_round({}, LIMITS)
        journal = Journal.load(dump(journal), HERE, NOW)
        with pytest.raises(OverBudget, match="without progress in between"):
            journal.count_round({}, LIMITS)

    @pytest.mark.parametrize(
        "work",
        [
            lambda journal: journal.steps.update(build=Step("app.build", {}, None)),
            lambda journal: journal.keep("name", "digest", {"action": "accept"}),
            lambda journal: setattr(journal, "state", None),
            lambda journal: setattr(journal, "state", {"count": 1}),
        ],
        ids=["a step", "an answer", "a first state", "a state"],
    )
    def test_a_new_entry_is_something_done(self, work: Callable[[Journal], object]) -> None:
        journal = Journal(NOW)
        journal.count_round({}, LIMITS)
        journal = Journal.load(dump(journal), HERE, NOW)
        work(journal)
        journal.count_round({}, LIMITS)
        assert journal.state_only == 2

    def test_what_a_handler_keeps_of_its_own_accord_has_all_rounds(self) -> None:
        journal, limits = Journal(NOW), Limits(state_only_rounds=1, rounds=5)
        for count in range(5):
            journal.state = count
            journal.count_round({}, limits, keeps_state=True)
        assert (journal.rounds, journal.state_only) == (5, 0)
        journal.state = 5
        with pytest.raises(OverBudget, match="more than 5 rounds"):
            journal.count_round({}, limits, keeps_state=True)

    def test_a_handler_that_keeps_the_same_again_is_ended(self) -> None:
        journal = Journal(NOW, state=1)
        journal.count_round({}, LIMITS, keeps_state=True)
        with pytest.raises(OverBudget, match="without progress in between"):
            journal.count_round({}, LIMITS, keeps_state=True)

    def test_a_state_whose_json_looks_the_same_is_another_one(self) -> None:
        journal = Journal(NOW, state="****", exact_state=["validated", "one"])
        journal.count_round({}, LIMITS, keeps_state=True)
        journal.exact_state = ["validated", "two"]
        journal.count_round({}, LIMITS, keeps_state=True)
        with pytest.raises(OverBudget):
            journal.count_round({}, LIMITS, keeps_state=True)

    def test_what_a_handler_kept_is_not_handed_over_with_nothing_done_since(self) -> None:
        journal = Journal(NOW, state=1)
        assert journal.may_hand_over(LIMITS)
        journal.count_round({}, LIMITS, keeps_state=True)
        assert not journal.may_hand_over(LIMITS)
        journal.keep("name", "digest", {})
        assert journal.may_hand_over(LIMITS)

    def test_a_journal_over_its_size_is_not_sealed(self) -> None:
        journal = Journal(NOW)
        journal.steps["report"] = Step("app.build", {}, "x" * 2000)
        size = len(dump(journal))
        assert len(dump(journal, limits=Limits(state_bytes=size))) == size
        with pytest.raises(OverBudget, match=f"{size} bytes, and at most {size - 1} are allowed") as caught:
            dump(journal, limits=Limits(state_bytes=size - 1))
        assert caught.value.data == {"limit": "state_bytes", "value": size - 1}

    def test_the_error_names_the_largest_entry(self) -> None:
        def largest(journal: Journal) -> str:
            with pytest.raises(OverBudget) as caught:
                dump(journal, limits=Limits(state_bytes=1))
            return caught.value.message.partition("largest entry is ")[2]

        journal = Journal(NOW)
        assert largest(journal) == "the questions"
        journal.keep("login", "digest", {"content": "x" * 10})
        assert largest(journal) == "the answer 'login'"
        journal.steps["build"] = Step("app.build", {}, "x" * 100)
        assert largest(journal) == "the step 'build'"
        journal.state = "x" * 1000
        assert largest(journal) == "the handler's own state"

    def test_the_error_counts_what_lies_beside_the_json_of_an_entry(self) -> None:
        journal = Journal(NOW, state="s" * 100)
        journal.steps["image"] = Step("m.image", {}, None, [], ["validated", {"bytes": "A" * 2000}])
        with pytest.raises(OverBudget, match="its largest entry is the step 'image'"):
            dump(journal, limits=Limits(state_bytes=1024))

    def test_the_error_does_not_repeat_what_is_in_it(self) -> None:
        journal = Journal(NOW)
        journal.state = "a secret of the server"
        with pytest.raises(OverBudget) as caught:
            dump(journal, limits=Limits(state_bytes=1))
        assert "secret" not in f"{caught.value.message} {caught.value.data}"


class TestAnswers:
    ASKED = Question(
        "form", "elicitation/create", {"message": "Your name?", "requestedSchema": {"a": 1}}, ("elicitation.form",)
    )
    OTHER_MESSAGE = Question(
        "form", "elicitation/create", {"message": "Name?", "requestedSchema": {"a": 1}}, ("elicitation.form",)
    )
    OTHER_FORM = Question(
        "form", "elicitation/create", {"message": "Your name?", "requestedSchema": {"a": 2}}, ("elicitation.form",)
    )
    OTHER_KIND = Question(
        "sample", "sampling/createMessage", {"message": "Your name?", "requestedSchema": {"a": 1}}, ("sampling",)
    )

    def delivered(self) -> Journal:
        journal = Journal(NOW)
        journal.count_round({"name": self.ASKED.digest}, LIMITS)
        journal.deliver({"name": {"action": "accept"}})
        return journal

    def test_an_answer_counts_for_the_question_that_was_asked(self) -> None:
        assert self.delivered().answer("name", self.ASKED.digest) == {"action": "accept"}

    @pytest.mark.parametrize("question", [OTHER_MESSAGE, OTHER_FORM, OTHER_KIND])
    def test_it_counts_for_no_other(self, question: Question) -> None:
        assert self.delivered().answer("name", question.digest) is None

    def test_it_counts_under_no_other_key(self) -> None:
        assert self.delivered().answer("name_2", self.ASKED.digest) is None

    def test_it_still_counts_when_the_question_was_asked_again_with_a_reason(self) -> None:
        again = self.ASKED.because("name: Field required")
        assert again.params["message"] == "name: Field required — Your name?"
        assert self.delivered().answer("name", again.digest) == {"action": "accept"}

    def test_a_pure_function_reads_it_by_the_kind_and_shape_of_its_question(self) -> None:
        journal = self.delivered()
        for question, counts in (
            (self.ASKED, True),
            (self.OTHER_MESSAGE, True),
            (self.OTHER_FORM, False),
            (self.OTHER_KIND, False),
        ):
            found = journal.newest_answer("name", question.kind, question.shape)
            assert found == ((self.ASKED.digest, {"action": "accept"}) if counts else None)
        assert journal.newest_answer("name", "form", None) == (self.ASKED.digest, {"action": "accept"})
        assert journal.newest_answer("name", "sample", None) is None
        assert journal.newest_answer("other", "form", None) is None

    @given(
        st.dictionaries(st.sampled_from("abcd"), digests, max_size=4),
        st.dictionaries(st.sampled_from("abcdef"), objects, max_size=6),
    )
    def test_keys_that_were_not_asked_are_ignored(self, asked: dict[str, str], sent: dict[str, Any]) -> None:
        journal = Journal(NOW)
        journal.count_round(dict(asked), LIMITS)
        journal.deliver(sent)
        assert journal.answers == {key: {asked[key]: sent[key]} for key in sent if key in asked}
        assert all(journal.answer(key, asked[key]) == sent[key] for key in journal.answers)

    def test_an_answer_that_is_kept_can_not_be_replaced_by_one_that_was_not_asked_for(self) -> None:
        journal = self.delivered()
        journal.deliver({"name": {"action": "decline"}})
        assert journal.answer("name", self.ASKED.digest) == {"action": "accept"}

    def test_a_question_that_was_left_open_is_not_answered_in_a_later_round(self) -> None:
        journal = Journal(NOW)
        journal.count_round({"one": "digest 1", "two": "digest 2"}, LIMITS)
        journal.deliver({"one": {}})
        journal.deliver({"two": {}})
        assert set(journal.answers) == {"one"}

    def test_an_early_answer_is_kept_for_the_question_that_it_met(self) -> None:
        journal = Journal(NOW)
        journal.keep("name", self.ASKED.digest, {"action": "accept"})
        assert journal.answer("name", self.ASKED.digest) == {"action": "accept"}
        assert journal.answer("name", self.OTHER_MESSAGE.digest) is None

    def test_what_is_forgotten_is_asked_again(self) -> None:
        journal = self.delivered()
        for _ in range(2):
            journal.forget("name", self.ASKED.digest)
            assert journal.answers == {}, "the key is free, for a step, say"

    @given(st.text(max_size=5), st.text(max_size=5), objects, objects)
    def test_every_part_of_a_question_is_in_its_digest(self, one: str, other: str, form: Any, other_form: Any) -> None:
        assume((one, digest(form)) != (other, digest(other_form)))
        first = Question("form", "elicitation/create", {"message": one, "requestedSchema": form}, ())
        second = Question("form", "elicitation/create", {"message": other, "requestedSchema": other_form}, ())
        assert first.digest != second.digest


class TestAnswersOfOneKey:
    """By question: two versions of a handler that ask under one key in turns each find their own."""

    def answered(self, *questions: str) -> Journal:
        journal = Journal(NOW)
        for number, question in enumerate(questions):
            journal.count_round({"who": question}, LIMITS)
            journal.deliver({"who": {"number": number}})
            journal = Journal.load(dump(journal), HERE, NOW)
        return journal

    def test_are_each_found_in_later_rounds(self) -> None:
        journal = self.answered("form.old.a", "form.new.a", "form.new.b")
        found = [journal.answer("who", question) for question in ("form.old.a", "form.new.a", "form.new.b")]
        assert found == [{"number": 0}, {"number": 1}, {"number": 2}]
        assert journal.answer("who", "form.other.a") is None

    def test_count_by_the_newest_where_a_pure_function_reads_by_the_form(self) -> None:
        journal = self.answered("form.old.a", "form.new.a", "form.new.b")
        assert journal.newest_answer("who", "form", "a") == ("form.new.a", {"number": 1})
        assert journal.newest_answer("who", "form", None) == ("form.new.b", {"number": 2})
        again = self.answered("form.old.a", "form.new.a", "form.old.a")
        assert again.newest_answer("who", "form", "a") == ("form.old.a", {"number": 2})

    def test_are_forgotten_each_by_itself(self) -> None:
        journal = self.answered("form.old.a", "form.new.a")
        journal.forget("who", "form.new.a")
        assert journal.answers == {"who": {"form.old.a": {"number": 0}}}
        journal.forget("who", "form.other.a")
        journal.forget("other", "form.old.a")
        assert journal.answers == {"who": {"form.old.a": {"number": 0}}}

    def test_are_the_newest_few(self) -> None:
        questions = [f"form.{number}.a" for number in range(ANSWERS_OF_A_KEY + 3)]
        journal = self.answered(*questions)
        assert list(journal.answers["who"]) == questions[3:]

    def test_are_given_up_before_the_flow_is_except_for_the_newest(self) -> None:
        journal = Journal(NOW)
        for question in ("form.old.a", "form.new.a"):
            journal.keep("who", question, {"text": "x" * 1000})
        size = len(dump(journal))
        assert Journal.load(dump(journal, limits=Limits(state_bytes=size)), HERE, NOW).answers == journal.answers
        tight = Journal.load(dump(journal, limits=Limits(state_bytes=size - 1)), HERE, NOW)
        assert tight.answers == {"who": {"form.new.a": {"text": "x" * 1000}}}
        with pytest.raises(OverBudget, match="largest entry is the answer 'who'"):
            dump(journal, limits=Limits(state_bytes=1100))

    def test_do_not_keep_a_flow_from_being_handed_over(self) -> None:
        journal = Journal(NOW)
        for question in ("form.old.a", "form.new.a"):
            journal.keep("who", question, {"text": "x" * 1000})
        assert journal.may_hand_over(Limits(state_bytes=2400))

    def test_count_with_all_that_a_state_has_besides_where_it_is_to_be_handed_over(self) -> None:
        journal = Journal(NOW)
        journal.keep("who", "form.new.a", {"text": "x" * 1000})
        fits = next(size for size in range(1000, 3000) if journal.may_hand_over(Limits(state_bytes=size)))
        assert fits == len(journal._held()) + _FRAME_BYTES
        assert len(dump(journal)) <= fits


class TestSingleUse:
    """From a confirmation on, each state of the flow is redeemed once."""

    CONFIRMING = "confirm.message.shape"

    def later(self, journal: Journal) -> Journal:
        return Journal.load(dump(journal), HERE, NOW)

    def test_begins_with_the_state_that_asks(self) -> None:
        journal = Journal(NOW)
        journal.count_round({"who": "form.confirm.a"}, LIMITS)
        journal = self.later(journal)
        assert not journal.single_use
        journal.deliver({"who": {}})
        journal.count_round({"who_2": "form.a.b", "sure": self.CONFIRMING}, LIMITS)
        assert self.later(journal).single_use

    def test_does_not_end(self) -> None:
        journal = Journal(NOW)
        journal.count_round({"sure": self.CONFIRMING}, LIMITS)
        for asked in ({"who": "form.a.b"}, {}):
            journal = self.later(journal)
            journal.deliver({})
            journal.state = asked
            journal.count_round(asked, LIMITS)
            assert journal.single_use
        assert self.later(journal).single_use

    @pytest.mark.parametrize("answered", [False, True])
    def test_is_seen_in_what_an_earlier_release_sealed_without_the_mark(self, answered: bool) -> None:
        journal = Journal(NOW)
        journal.count_round({"sure": self.CONFIRMING}, LIMITS)
        if answered:
            journal.deliver({"sure": {"action": "accept"}})
        marked = dump(journal)
        assert b'"c":true' in marked
        assert Journal.load(marked.replace(b',"c":true', b""), HERE, NOW).single_use


def test_every_flow_has_an_id_of_its_own_and_keeps_it() -> None:
    ids = set()
    for _ in range(1_000):
        journal = Journal(NOW)
        ids.add(journal.flow)
        assert journal.flow in ids
        assert Journal.load(journal.dump(HERE, NOW, 600, LIMITS), HERE, NOW).flow == journal.flow
    assert len(ids) == 1_000
    assert {len(each) for each in ids} == {32}
