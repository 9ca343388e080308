"""Every rule that a check can find broken: its id, what it says and where that stands, and how to mend it.

Three severities. ``error``: a second effect, a wrong answer or somebody else's answer is possible. ``warning``: a
client cannot rely on the answer. ``note``: advice, or a point where the draft leaves freedom; notes are no findings
unless the check is strict.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DRAFT = "draft-ietf-httpapi-idempotency-key-header-07"
STRIPE = "Stripe, API reference, Idempotent requests"


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that can be wrong."""

    id: str
    severity: Severity
    says: str
    source: str
    fix: str


_TABLE = (
    # ------------------------------------------------------------------ the endpoint itself
    ("endpoint.fails", "error", "A plain request with a new key is answered.", "safety",
     "Look at the server's log: it fails before idempotency comes into it."),
    ("endpoint.died", "error", "The server goes on serving, whatever it is sent.", "safety",
     "Find out which of the requests ended the server; the last exchange is shown."),
    # ------------------------------------------------------------------ header
    ("header.missing", "error", "A request without the header is served or refused with 400, and never fails.",
     f"{DRAFT}, section 2.7",
     "Answer 400 with a sentence if the header is required, before anything is run."),
    ("header.empty", "warning", "An empty header is no key: it is refused, or taken as absent.",
     f"{DRAFT}, sections 2.1 and 2.2", "Answer 400 to an empty Idempotency-Key."),
    ("header.too-long", "warning", "A key that is too long is refused with 400, and never fails.",
     f"{DRAFT}, section 5", "Bound the length of keys (255 is usual), and answer 400 beyond it."),
    ("header.malformed", "warning", "A malformed key is refused with 400, and never fails.", f"{DRAFT}, section 5",
     "Validate the key before it is looked up, and answer 400."),
    ("header.repeated", "warning", "Two header lines are refused with 400, and never fail.",
     f"{DRAFT}, section 2.1", "Answer 400 to a request with more than one Idempotency-Key line."),
    ("header.non-ascii", "warning", "A key that is not ASCII is refused with 400, and never fails.",
     f"{DRAFT}, section 2.1 (RFC 9651 String)", "Refuse bytes beyond ASCII in the key with 400."),
    ("header.collision", "error", "Two different keys are two operations.", f"{DRAFT}, section 2.2",
     "Compare the whole key; do not cut it, and refuse what is too long."),
    ("header.case", "error", "Keys that differ in case are two keys.", f"{DRAFT}, section 2.2",
     "Compare keys byte for byte; do not fold their case, nor use a collation that does."),
    ("header.spellings", "note", "A key as a String (in quotation marks) and the bare value are one key, or one is refused.",
     f"{DRAFT}, section 2.1", "Parse the header as a String of RFC 9651, or refuse the bare spelling."),
    ("header.syntax", "note", "A key as a String, in quotation marks, is taken.", f"{DRAFT}, section 2.1",
     "Accept the header as a String of RFC 9651."),
    ("header.malformed-taken", "note", "What is no String of RFC 9651 is refused.", f"{DRAFT}, sections 2.1 and 5",
     "Validate the key against the format that you publish, and answer 400."),
    ("header.repeated-taken", "note", "Two header lines with two keys are refused.", f"{DRAFT}, section 2.1",
     "Answer 400 to a request with more than one Idempotency-Key line: two readers may take two different keys."),
    # ------------------------------------------------------------------ replay
    ("replay.ran-again", "error", "A retry with the same key has no second effect.", f"{DRAFT}, section 2.6",
     "Claim the key in one atomic statement before the handler runs, and answer retries from the record."),
    ("replay.conflict", "error", "Once the first request is done, a retry gets its result and not a conflict for ever.",
     f"{DRAFT}, section 2.6", "Mark the record as completed, with its answer, before the answer is sent."),
    ("replay.failed", "error", "A retry of a request that succeeded does not fail.", f"{DRAFT}, section 2.6",
     "Answer the retry from the record; look at the server's log for why it failed."),
    ("replay.refused", "error", "A retry of the same request is not refused.", f"{DRAFT}, section 2.6",
     "Compare the request as it was received, so that the same bytes are always the same request."),
    ("replay.status", "error", "A retry gets the status of the first answer.", f"{DRAFT}, section 2.6",
     "Store the status with the body, and replay both."),
    ("replay.body", "error", "A retry gets the body of the first answer.", f"{DRAFT}, section 2.6",
     "Store the bytes of the body and send those; do not make the answer anew."),
    ("replay.respelled", "note", "A retry gets the body byte for byte, not only the same JSON.", "safety",
     "Store the bytes of the body, so that signatures and digests over it stay true."),
    ("replay.headers", "warning", "A retry gets the Content-Type and the Location of the first answer.",
     f"{DRAFT}, section 2.6", "Store the headers that describe the result, and replay them."),
    ("replay.cookies", "error", "Cookies of the first answer are not replayed.", "safety",
     "Leave Set-Cookie and credentials out of what is stored: a replay may reach another session."),
    ("replay.marker", "warning", "A first answer is not marked as a replay.", "safety",
     "Set the marker of replays on replays only."),
    ("replay.unmarked", "note", "A replay carries Idempotent-Replayed: true.", STRIPE,
     "Add Idempotent-Replayed: true to replays."),
    ("replay.reordered", "error", "The same JSON with its members in another order is not run again.",
     f"{DRAFT}, sections 2.4 and 2.6", "Replay it, or refuse it; a key that is used is never run again."),
    # ------------------------------------------------------------------ misuse
    ("misuse.body", "error", "A used key with another body is refused, and does not get the old answer.",
     f"{DRAFT}, section 2.7", "Store a fingerprint of the request with the key, and answer 422 when it differs."),
    ("misuse.ran", "error", "A used key with another body is refused, and nothing is run.",
     f"{DRAFT}, section 2.7", "Look the key up by itself, not together with the body, and answer 422 when the body differs."),
    ("misuse.failed", "warning", "A used key with another body is refused, and never fails.",
     f"{DRAFT}, section 2.7", "Answer 422 when the fingerprint differs."),
    ("misuse.forgets", "error", "A refused misuse of a key leaves the first answer as it was.",
     f"{DRAFT}, section 2.6", "Change nothing in the record when a request is refused."),
    ("misuse.prefix", "error", "The whole body is compared, wherever in it the difference is.",
     f"{DRAFT}, section 2.4", "Hash all of the body, not only its beginning."),
    ("misuse.path", "error", "A used key does not get its old answer on another path.",
     f"{STRIPE} (endpoint and parameters); safety", "Put the path into the fingerprint, or into the scope of the key."),
    ("misuse.method", "error", "A used key does not get its old answer with another method.",
     f"{STRIPE} (endpoint and parameters); safety", "Put the method into the fingerprint, or into the scope of the key."),
    ("misuse.query", "error", "A used key does not get its old answer with another query.",
     f"{STRIPE} (endpoint and parameters); safety", "Put the query into the fingerprint."),
    ("misuse.numbers", "error", "Numbers beyond 2^53 that differ are different.", "RFC 8785, section 3.2.2.3; safety",
     "Compare big numbers exactly, as text or as integers, never as doubles."),
    ("misuse.duplicates", "error", "A body with a member twice is not taken for the body with either of them.",
     "RFC 8259, section 4; safety", "Compare such a body by its bytes, or refuse it."),
    ("misuse.status", "note", "A used key with another body is refused with the status of the profile.",
     f"{DRAFT}, section 2.7; {STRIPE}", "Answer 422 (draft), or 400 with idempotency_error (Stripe)."),
    ("misuse.partly", "note", "Every member of the body is compared.", f"{DRAFT}, section 2.4",
     "If a member is left out of the fingerprint on purpose, publish that; otherwise compare it too."),
    # ------------------------------------------------------------------ concurrency
    ("concurrency.ran-twice", "error", "Identical requests at the same moment have one effect.",
     f"{DRAFT}, section 2.6", "Claim the key with one atomic statement (insert or nothing), never check and then insert."),
    ("concurrency.mixed", "error", "Of different requests with one key at the same moment, one runs.",
     f"{DRAFT}, sections 2.6 and 2.7", "Claim the key by itself, without the body, in one atomic statement."),
    ("concurrency.failed", "error", "Requests at the same moment get the answer or a conflict, and never fail.",
     f"{DRAFT}, section 2.7", "Answer 409 when the key is claimed already; do not let the constraint's error through."),
    ("concurrency.stuck", "error", "After requests at the same moment the key has an answer.",
     f"{DRAFT}, section 2.6", "Only the request that holds the key may change its record, and it completes it."),
    ("concurrency.status", "note", "A request that meets a running one gets 409, or waits for its answer.",
     f"{DRAFT}, section 2.7", "Answer 409 while the first request is being processed."),
    # ------------------------------------------------------------------ isolation
    ("isolation.tenant", "error", "The key of one tenant means nothing to another.", f"{DRAFT}, section 5",
     "Look keys up by tenant and key together; the tenant is the authenticated caller."),
    ("isolation.credentials", "error", "Nobody gets a replay without valid credentials.", f"{DRAFT}, section 5",
     "Authenticate first, and look at the key only then."),
    # ------------------------------------------------------------------ loss
    ("loss.half-request", "error", "A client that leaves half-way through its body can still retry.", "safety",
     "Claim the key only when the whole body is there."),
    ("loss.ran-again", "error", "A request whose answer was lost is not run a second time.", f"{DRAFT}, section 2.6",
     "Make the record durable before the first byte of the answer, and keep it whether or not the client is there."),
    ("loss.stuck", "error", "A request whose answer was lost can be retried, and gets its result.",
     f"{DRAFT}, section 2.6", "Finish the operation, and complete its record, also when the client has left."),
    # ------------------------------------------------------------------ errors
    ("errors.remembered-5xx", "warning", "A 5xx is no result: the same key can succeed later.",
     "Stripe, API v2, Idempotency; safety", "Do not store a 5xx; free the key if nothing happened, or find out what did."),
    ("errors.forgotten-5xx", "warning", "The first answer is kept, a 500 included.", f"{STRIPE} (API v1)",
     "Store the answer whatever its status is, once the handler has begun."),
    ("errors.ran-twice", "error", "A failed request that had its effect does not have it again on a retry.",
     f"{DRAFT}, section 2.6; safety", "Free a key only on proof that nothing happened: roll back, or keep the key."),
    ("errors.stuck", "error", "A refused request does not leave its key in conflict for ever.",
     f"{DRAFT}, section 2.6", "Complete or release the record whenever the handler ends, by an error too."),
    ("errors.changed", "warning", "A refused request is refused again when it is retried.", f"{DRAFT}, section 2.6",
     "Replay the refusal, or validate again; the same request has the same outcome."),
    ("errors.validation", "error", "A corrected request does not get the validation error of the one before.",
     f"{DRAFT}, section 2.7", "Validate before the key is claimed, or compare the fingerprint of refused requests too."),
    ("errors.validation-kept", "warning", "A request that failed validation can be corrected under its key.",
     f"{STRIPE} (no result is saved if parameters fail validation)", "Validate before the key is claimed."),
    ("errors.redirect", "error", "A redirect is not remembered: the key works at the place that it names.", "safety",
     "Do not store 307 and 308, nor bind the key to the place that only redirects."),
    # ------------------------------------------------------------------ lifetime
    ("lifetime.early", "warning", "A key is kept for as long as is published.", f"{DRAFT}, section 2.3",
     "Keep the record for the published time, counted from the answer."),
    # ------------------------------------------------------------------ documentation
    ("documentation.problem", "note", "Refusals are application/problem+json.", f"{DRAFT}, section 2.7",
     "Answer with problem details (RFC 9457): type, title, detail."),
    ("documentation.link", "note", "Refusals lead to documentation, by a link in the body or a Link header.",
     f"{DRAFT}, section 2.7", 'Add Link: <…>; rel="describedby", or a type that is the address of a page.'),
    ("documentation.openapi", "note", "The published OpenAPI document names the header.", f"{DRAFT}, section 2.5",
     "Add Idempotency-Key to the parameters of the operation."),
)  # fmt: skip

RULES = {row[0]: Rule(row[0], Severity(row[1]), *row[2:]) for row in _TABLE}
"""By id."""

GROUPS = tuple(dict.fromkeys(rule.partition(".")[0] for rule in RULES))
