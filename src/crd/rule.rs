//! What the API server checks beyond types, lengths and ranges, each with the sentence that it answers. A pattern or a format would
//! answer with itself, which helps nobody who mistyped: so CEL. Every text that a rule touches has a longest length, or the API
//! server could not tell what the rule may cost, and would refuse the definition.

use kube::core::Rule;

/// What to write where a DID belongs.
pub const DID_FORM: &str = "write did:matrix:<user id>:<first 16 hex digits of the public key>, in lower case";
/// What to write where a key belongs.
pub const KEY_FORM: &str = "write the agent's whole ed25519 public key: 64 hex digits, in lower case";
/// What to write where an instant belongs.
const INSTANT_FORM: &str = "give date, time and offset, from 1970 to 2100, such as 2026-11-16T09:00:00Z";

/// RE2, as CEL has it.
const DID: &str = "^did:matrix:[A-Za-z0-9_-]+:[0-9a-f]{16}$";
const KEY: &str = "^[0-9a-f]{64}$";
const INSTANT: &str = "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$";

pub fn did() -> Rule {
    Rule::new(format!("self.matches('{DID}')")).message(DID_FORM)
}

pub fn key() -> Rule {
    Rule::new(format!("self.matches('{KEY}')")).message(KEY_FORM)
}

/// Of a key that is none its own rule tells.
pub fn did_names_key() -> Rule {
    Rule::new(format!("!self.publicKey.matches('{KEY}') || self.did.endsWith(':' + self.publicKey.substring(0, 16))"))
        .message("the DID's last part must be the first 16 hex digits of publicKey")
        .field_path(".did")
}

/// Its form comes first: CEL's own words for a text that is no instant at all are about Go's reference time.
pub fn instant() -> Rule {
    let rule = format!(
        "self.matches('{INSTANT}') && timestamp(self) >= timestamp('1970-01-01T00:00:00Z') && \
         timestamp(self) <= timestamp('2100-12-31T23:59:59.999999Z')"
    );
    Rule::new(rule).message(INSTANT_FORM)
}

/// Of texts that are no instants their own rules tell.
pub fn ends_after_start() -> Rule {
    let rule = format!(
        "!(has(self.startsAt) && has(self.endsAt)) || !self.startsAt.matches('{INSTANT}') || \
         !self.endsAt.matches('{INSTANT}') || timestamp(self.startsAt) < timestamp(self.endsAt)"
    );
    Rule::new(rule).message("endsAt must lie after startsAt: give a later one").field_path(".endsAt")
}

pub fn exactly_one_schedule() -> Rule {
    Rule::new("[has(self.fireAt), has(self.delaySeconds), has(self.cronExpr)].filter(given, given).size() == 1")
        .message("give exactly one of fireAt, delaySeconds and cronExpr")
}

pub fn one_payload() -> Rule {
    Rule::new("!(has(self.payload) && has(self.payloadJson))")
        .message("give payload or payloadJson, not both")
        .field_path(".payloadJson")
}

/// `given`: when the field counts as given.
pub fn with_cron_only(field: &str, given: &str) -> Rule {
    let message = format!("{field} goes with cronExpr only: leave it out, or give cronExpr");
    Rule::new(format!("!({given}) || has(self.cronExpr)")).message(message.as_str()).field_path(format!(".{field}"))
}

/// `kind`: what to make instead.
pub fn immutable(field: &str, kind: &str) -> Rule {
    let message = format!("{field} is immutable: create another {kind}");
    Rule::new(format!("self.{field} == oldSelf.{field}")).message(message.as_str()).field_path(format!(".{field}"))
}

/// The API server counts characters in `maxLength`, the database bytes. A rule of the spec, not of the field: with a field's the API
/// server repeats its whole value.
pub fn at_most_bytes(field: &str, cap: usize) -> Rule {
    let message = format!("is longer than {cap} bytes: shorten it (a letter outside ASCII takes two to four)");
    Rule::new(format!("!has(self.{field}) || size(bytes(self.{field})) <= {cap}"))
        .message(message.as_str())
        .field_path(format!(".{field}"))
}

pub fn not_blank(remedy: &str) -> Rule {
    Rule::new(r"self.matches('\\S')").message(format!("is blank: {remedy}").as_str())
}

/// CEL knows the zones that the API server knows; `UTC` it may know by another name.
pub fn zone() -> Rule {
    Rule::new(
        "self == 'UTC' || (self.matches('^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$') && self != 'Local' && \
         timestamp('2024-01-01T00:00:00Z').getHours(self) >= 0)",
    )
    .message("no such time zone: use an IANA name in its own spelling, such as Europe/Berlin")
}
