//! Scripts of the test bed that obey words: each line they are told is answered with one.

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

use tokio::task::spawn_blocking;

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// `testbed/<script> obey`, on a directory of its own. It ends with this handle, and with this process however that ends.
pub struct Script {
    pub directory: PathBuf,
    // Answered on a thread of its own: what a test plays itself, such as a router, lives on the test's.
    talk: Arc<Mutex<Talk>>,
}

/// Both ends of the talk with it.
struct Talk {
    child: Option<Child>,
    // Its end is the script's.
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Script {
    /// Starts it with what `add` adds to the command, and returns it with its first words.
    pub async fn obeying(script: &str, add: impl FnOnce(&mut Command)) -> (Self, String) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testbed").join(script);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = path.file_stem().expect("it has a name").to_string_lossy();
        let directory = std::env::temp_dir().join(format!("chronos-obey-{name}-{}-{number}", std::process::id()));
        let mut command = Command::new(&path);
        command.arg("obey").arg(&directory).env("TESTBED_PARENT", std::process::id().to_string());
        add(&mut command);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the test bed is there");
        let (orders, answers) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("piped")).lines());
        let mut talk = Talk { child: Some(child), orders, answers };
        let (said, talk) = spawn_blocking(move || (talk.answer(), talk)).await.expect("the test bed starts");
        (Self { directory, talk: Arc::new(Mutex::new(talk)) }, said)
    }

    pub async fn tell(&self, words: impl Into<String>) -> String {
        let (talk, words) = (Arc::clone(&self.talk), words.into());
        spawn_blocking(move || talk.lock().unwrap().tell(&words)).await.expect("the test bed obeys")
    }
}

impl Talk {
    fn tell(&mut self, words: &str) -> String {
        let orders = self.orders.as_mut().expect("open until it is dropped");
        writeln!(orders, "{words}").expect("the test bed listens");
        self.answer()
    }

    fn answer(&mut self) -> String {
        self.answers.next().expect("the test bed's words are above").expect("it speaks text")
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.orders.take();
        let child = self.child.take();
        thread::spawn(move || child.map(|mut child| child.wait())); // nobody waits for it, but it is reaped
    }
}
