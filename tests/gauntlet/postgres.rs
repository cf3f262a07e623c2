//! A Postgres server of one's own, with nothing unsafe about it, that can be stopped and started again.

use std::{
    io::{BufRead, BufReader, Lines, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use tokio::{sync::OnceCell, task::spawn_blocking};

use crate::support::Database;

/// Its directory: a server that was migrated and stopped, and waits to be copied until the run ends.
static TEMPLATE: OnceCell<Postgres> = OnceCell::const_new();
static NUMBER: AtomicU32 = AtomicU32::new(0);

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
    directory: PathBuf,
    script: Arc<Mutex<Script>>,
}

/// `testbed/postgres.sh obey`, and both ends of the talk with it.
struct Script {
    child: Option<Child>,
    // Its end is the script's.
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Postgres {
    /// A migrated one, in about half a second.
    pub async fn start() -> Self {
        let template = TEMPLATE.get_or_init(Self::template).await;
        Self::obeying(Some(template.directory.clone()), None).await
    }

    /// One that is careless in one thing, such as `fsync`.
    pub async fn start_without(setting: &str) -> Self {
        let template = TEMPLATE.get_or_init(Self::template).await;
        Self::obeying(Some(template.directory.clone()), Some(setting)).await
    }

    pub async fn stop(&self, how: Stop) {
        let words = match how {
            Stop::Fast => "stop fast",
            Stop::Immediate => "stop immediate",
        };
        assert_eq!(self.tell(words).await, "stopped");
    }

    /// The same data on the same port.
    pub async fn start_again(&self) {
        assert_eq!(uri(&self.tell("start").await), self.uri);
    }

    async fn template() -> Self {
        let template = Self::obeying(None, None).await;
        let store = Database { uri: template.uri.clone() }.store().await;
        store.migrate().await.expect("the migrations run");
        store.close().await;
        template.stop(Stop::Fast).await;
        template
    }

    async fn obeying(template: Option<PathBuf>, off: Option<&str>) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("chronos-gauntlet-{}-{number}", std::process::id()));
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("testbed/postgres.sh"));
        command.arg("obey").arg(&directory).args(template).env("TESTBED_PARENT", std::process::id().to_string());
        command.envs(off.map(|setting| ("TESTBED_OFF", setting)));
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the test bed has a Postgres");
        let (orders, answers) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("piped")).lines());
        let mut script = Script { child: Some(child), orders, answers };
        // Not on this thread: the sink lives on it.
        let (said, script) = spawn_blocking(move || (script.answer(), script)).await.expect("Postgres starts");
        Self { uri: uri(&said), directory, script: Arc::new(Mutex::new(script)) }
    }

    async fn tell(&self, words: &'static str) -> String {
        let script = Arc::clone(&self.script);
        spawn_blocking(move || script.lock().unwrap().tell(words)).await.expect("the test bed obeys")
    }
}

impl Script {
    fn tell(&mut self, words: &str) -> String {
        let orders = self.orders.as_mut().expect("open until it is dropped");
        writeln!(orders, "{words}").expect("the test bed listens");
        self.answer()
    }

    fn answer(&mut self) -> String {
        self.answers.next().expect("the test bed's words are above").expect("it speaks text")
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.orders.take();
        let child = self.child.take();
        thread::spawn(move || child.map(|mut child| child.wait())); // nobody waits for it, but it is reaped
    }
}

/// Of the one database that a server is born with.
fn uri(said: &str) -> String {
    format!("{}/postgres", said.strip_prefix("ready ").expect("it is ready"))
}
