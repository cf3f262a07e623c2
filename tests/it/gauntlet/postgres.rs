//! A Postgres server of one's own, with nothing unsafe about it, that can be stopped and started again.

use tokio::sync::OnceCell;

use crate::support::{Database, script::Script};

/// Its directory: a server that was migrated and stopped, and waits to be copied until the run ends.
static TEMPLATE: OnceCell<Postgres> = OnceCell::const_new();

/// How a server ends.
#[derive(Clone, Copy, Debug)]
pub enum Stop {
    /// As an administrator stops it: connections are closed, everything is written.
    Fast,
    /// As if it had crashed: the next start recovers from the log.
    Immediate,
}

/// A running server, or a stopped one. It ends with this handle, and with this process however that ends.
pub struct Postgres {
    /// Of the database in which the schema stands.
    pub uri: String,
    script: Script,
}

impl Postgres {
    /// A migrated one, in about half a second.
    pub async fn start() -> Self {
        let template = TEMPLATE.get_or_init(Self::template).await;
        Self::obeying(Some(template), None).await
    }

    /// One that is careless in one thing, such as `fsync`.
    pub async fn start_without(setting: &str) -> Self {
        let template = TEMPLATE.get_or_init(Self::template).await;
        Self::obeying(Some(template), Some(setting)).await
    }

    pub async fn stop(&self, how: Stop) {
        let words = match how {
            Stop::Fast => "stop fast",
            Stop::Immediate => "stop immediate",
        };
        assert_eq!(self.script.tell(words).await, "stopped");
    }

    /// The same data on the same port.
    pub async fn start_again(&self) {
        assert_eq!(uri(&self.script.tell("start").await), self.uri);
    }

    async fn template() -> Self {
        let template = Self::obeying(None, None).await;
        let store = Database { uri: template.uri.clone() }.store().await;
        store.migrate().await.expect("the migrations run");
        store.close().await;
        template.stop(Stop::Fast).await;
        template
    }

    async fn obeying(template: Option<&Self>, off: Option<&str>) -> Self {
        let more = |command: &mut std::process::Command| {
            command.args(template.map(|template| &template.script.directory));
            command.envs(off.map(|setting| ("TESTBED_OFF", setting)));
        };
        let (script, said) = Script::obeying("postgres.sh", more).await;
        Self { uri: uri(&said), script }
    }
}

/// Of the one database that a server is born with.
fn uri(said: &str) -> String {
    format!("{}/postgres", said.strip_prefix("ready ").expect("it is ready"))
}
