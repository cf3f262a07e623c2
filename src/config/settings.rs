//! Every setting there is: name, default, reason.

/// One environment variable.
pub struct Setting {
    pub name: &'static str,
    pub default: Option<&'static str>,
    /// A secret has no flag: command lines are visible to everybody on the machine.
    pub secret: bool,
    pub help: &'static str,
}

const fn plain(name: &'static str, default: Option<&'static str>, help: &'static str) -> Setting {
    Setting { name, default, secret: false, help }
}

const fn secret(name: &'static str, help: &'static str) -> Setting {
    Setting { name, default: None, secret: true, help }
}

/// Every setting, in the order in which `chronosd run --help` shows them.
pub const SETTINGS: &[Setting] = &[
    plain("CHRONOS_ROLES", Some("controller,dispatch,api"), "What this process does"),
    secret("CHRONOS_POSTGRES_URI", "The database: postgres://user:password@host:5432/name"),
    plain(
        "CHRONOS_ALLOW_UNSAFE_POSTGRES",
        Some("false"),
        "Accept a database that may lose committed rows in a crash (tests only)",
    ),
    plain("CHRONOS_BIND", Some("127.0.0.1"), "Address to listen on; 0.0.0.0 inside a container"),
    plain("CHRONOS_PORT", Some("9096"), "Port of the HTTP facade; 0 takes a free one"),
    plain("CHRONOS_METRICS_PORT", Some("9097"), "Port of metrics and probes; 0 takes a free one"),
    plain(
        "CHRONOS_TLS_CERT_PATH",
        None,
        "The facade's certificate chain, PEM, its own first; read again when it changes; unset: plain HTTP",
    ),
    plain("CHRONOS_TLS_KEY_PATH", None, "The key of that certificate, PEM; read again when it changes"),
    secret(
        "CHRONOS_TOKEN",
        "Bearer that every caller of the facade presents; several, comma separated, during a rotation",
    ),
    secret(
        "CHRONOS_AGENT_AUTH_SECRET",
        "Signs principal tokens; several, comma separated, during a rotation: the first signs",
    ),
    plain(
        "CHRONOS_ENROLMENT",
        Some("registered"),
        "Which agents may sign in: registered, or open (any well-formed DID; only with CHRONOS_DEV=true)",
    ),
    plain(
        "CHRONOS_OWNER_RATE",
        Some("100"),
        "Requests a second that one owner may make of each replica, twice as many at once; 0: any number",
    ),
    plain("CHRONOS_DEV", Some("false"), "Allow what is fit for a developer's machine only"),
    plain("CHRONOS_ROUTER_WAKE_URL", Some("http://127.0.0.1:8088/internal/wake"), "Where wakes go"),
    secret("CHRONOS_WAKE_TOKEN", "Bearer that the router expects"),
    secret(
        "CHRONOS_WAKE_SIGNING_SECRET",
        "Signs wakes as Standard Webhooks has it: whsec_<base64>; several, comma separated, during a rotation; unset: no signature",
    ),
    plain(
        "CHRONOS_TIMER_SINK_URL",
        None,
        "Where service calls are told that a timer's due time was reached; default: where wakes go",
    ),
    secret(
        "CHRONOS_TIMER_SINK_TOKEN",
        "Bearer that the timer sink expects; default: the wake token, if the sink is on the same origin as the router",
    ),
    plain("CHRONOS_WAKE_TIMEOUT_SECONDS", Some("60"), "Deadline of one delivery; a cold agent takes 30 to 45 s"),
    plain("CHRONOS_TICK_MS", Some("1000"), "Heartbeat: how often to look for due alarms when nothing hints at one"),
    plain("CHRONOS_LEASE_SECONDS", Some("120"), "How long a claim holds before another dispatcher may take the alarm"),
    plain(
        "CHRONOS_DISPATCH_MODE",
        Some("leader"),
        "Who delivers in a cluster: leader (one replica, elected by a Lease) or active (every replica); outside always active",
    ),
    plain("CHRONOS_BATCH", Some("500"), "Most alarms one claim takes"),
    plain("CHRONOS_CONCURRENCY", Some("512"), "Deliveries in flight at once"),
    plain("CHRONOS_OWNER_CONCURRENCY", Some("32"), "Deliveries of one owner in flight at once"),
    plain(
        "CHRONOS_BEAT_MS",
        Some("5000"),
        "How often a dispatcher says that it lives; one that stands still over three beats is dead, and its claims are taken",
    ),
    plain(
        "CHRONOS_HINTS",
        Some("on"),
        "Tell dispatchers at once of alarms due within a tick; off behind a pgbouncer that pools transactions",
    ),
    plain(
        "CHRONOS_SHUTDOWN_SECONDS",
        None,
        "How long a stop waits for deliveries in flight; default: the wake timeout + 5",
    ),
    plain("CHRONOS_MAX_FAILURES", Some("5"), "Retries of an alarm that does not say otherwise"),
    plain("CHRONOS_RETRY_BASE_MS", Some("30000"), "First rung of the retry ladder"),
    plain("CHRONOS_RETRY_CAP_MS", Some("900000"), "Longest wait between two attempts"),
    plain("CHRONOS_RETRY_JITTER", Some("0.1"), "Share by which a rung after the first varies"),
    plain("CHRONOS_ATTEMPT_RETENTION_DAYS", Some("30"), "How long what became of every attempt is kept"),
    plain("CHRONOS_ALARM_RETENTION_DAYS", None, "How long alarms that are over are kept; unset: for ever"),
    plain(
        "CHRONOS_AUTONOMY_ENABLED",
        Some("true"),
        "Whether there are sessions that follow up by themselves; false: none is served, and their timers wait untouched",
    ),
    plain(
        "CHRONOS_AUTONOMY_MAX_CONSECUTIVE",
        Some("3"),
        "Messages that a session's agent may send unasked before its user says something",
    ),
    plain("CHRONOS_AUTONOMY_COOLDOWN_MS", Some("15000"), "Shortest time between two such messages"),
    plain(
        "CHRONOS_AUTONOMY_ACK_MS",
        Some("30000"),
        "How long a session's client may take to acknowledge a message before it is sent again",
    ),
    plain(
        "CHRONOS_AUTONOMY_RETENTION_DAYS",
        None,
        "How long what a session has worked through is kept; unset: for ever",
    ),
    plain("CHRONOS_API_POOL", Some("10"), "Database connections of the facade"),
    plain("CHRONOS_DISPATCH_POOL", Some("10"), "Database connections of the dispatcher"),
    plain("CHRONOS_WATCH_NAMESPACES", Some(""), "Namespaces the controller watches, comma separated; empty: all"),
    plain("CHRONOS_CLUSTER_NAME", Some(""), "What `chronosd cluster list` calls this cluster, beside its id"),
    plain(
        "CHRONOS_ORPHAN_GRACE_SECONDS",
        Some("300"),
        "How long a resource must be gone before its alarm is cancelled as an orphan",
    ),
    plain(
        "CHRONOS_NAMESPACE",
        None,
        "Namespace of the Leases chronos-dispatch and chronos-controller; default: the pod's, or the kubeconfig context's",
    ),
    plain("CHRONOS_LOG", Some("info"), "Log filter, e.g. info,chronos::dispatch=debug"),
    // Not ours to name: OpenTelemetry's own, as collectors' documentation and operators set them.
    plain(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        None,
        "Where traces go: the collector's address for OTLP over HTTP, such as http://collector:4318; unset: none are made",
    ),
    plain("OTEL_EXPORTER_OTLP_PROTOCOL", Some("http/protobuf"), "How they go there; this version knows no other way"),
];

/// `CHRONOS_TICK_MS` → `tick-ms`.
pub fn flag(name: &str) -> String {
    name.trim_start_matches("CHRONOS_").to_ascii_lowercase().replace('_', "-")
}
