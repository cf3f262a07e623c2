//! The reader's machine: an empty folder, terminals in it, and on the PATH what the guides ask for.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Stdio,
    sync::LazyLock,
};

use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use super::page::alike;
use crate::support::PATIENCE;

static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| tool("python"));
static NODE: LazyLock<PathBuf> = LazyLock::new(|| tool("node"));

/// Where the test bed keeps the binaries of that tool.
fn tool(name: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("testbed/tools.sh");
    let said = std::process::Command::new(script).arg(name).stderr(Stdio::inherit()).output().unwrap();
    assert!(said.status.success(), "testbed/tools.sh {name} says why");
    PathBuf::from(String::from_utf8(said.stdout).unwrap().trim())
}

pub struct Folder {
    directory: TempDir,
}

impl Folder {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        // Postgres runs as another user and has to get in.
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["bin", "home", "here"] {
            fs::create_dir(path.join(name)).unwrap();
        }
        // npx takes what stands in node_modules, and asks the network for nothing.
        symlink(NODE.parent().unwrap(), path.join("here/node_modules")).unwrap();
        fs::write(path.join("home/.npmrc"), "offline=true\nupdate-notifier=false\n").unwrap();
        // The guides' chronosd takes its usual ports and folder; tests run many at once.
        let chronosd = path.join("bin/chronosd");
        let script = format!(
            "#!/bin/sh\n[ \"$1\" != dev ] || set -- \"$@\" --port 0 --metrics-port 0 --data-dir '{}'\nexec '{}' \"$@\"\n",
            path.join("data").display(),
            env!("CARGO_BIN_EXE_chronosd")
        );
        fs::write(&chronosd, script).unwrap();
        fs::set_permissions(&chronosd, fs::Permissions::from_mode(0o755)).unwrap();
        Self { directory }
    }

    /// Puts a program on the PATH, before any other of its name.
    pub fn install(&self, program: &Path) {
        symlink(program, self.directory.path().join("bin").join(program.file_name().unwrap())).unwrap();
    }

    /// Puts something of the checkout where the reader is.
    pub fn link(&self, name: &str, path: &Path) {
        symlink(path, self.directory.path().join("here").join(name)).unwrap();
    }

    pub fn save(&self, name: &str, text: &str) {
        fs::write(self.directory.path().join("here").join(name), text).unwrap();
    }

    /// A shell in the folder, with nothing of ours in its environment but these settings.
    fn bash(&self, death_signal: &str, settings: &HashMap<String, String>) -> Command {
        let path = self.directory.path();
        let search = std::env::var("PATH").unwrap();
        let mut command = Command::new("setpriv");
        command
            .args([&format!("--pdeathsig={death_signal}"), "--", "bash"])
            .current_dir(path.join("here"))
            .env_clear()
            .env("PATH", format!("{}:{}:{search}", path.join("bin").display(), PYTHON.display()))
            .env("HOME", path.join("home"))
            .envs(settings)
            .stdout(Stdio::piped());
        command
    }

    pub async fn terminal(&self, settings: &HashMap<String, String>) -> Terminal {
        let mut child = self.bash("KILL", settings).stdin(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let keyboard = child.stdin.take().unwrap();
        let screen = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut terminal = Terminal { _shell: child, keyboard, screen };
        terminal.run("set -euo pipefail").await;
        terminal
    }

    /// Starts what goes on running.
    pub fn serve(&self, text: &str, settings: &HashMap<String, String>) -> Served {
        // A group of its own with a guard, so that all of it ends with us, however many processes it is.
        let guard = "trap '' INT; trap 'kill -KILL 0' TERM EXIT; bash -c \"$1\" & wait";
        let mut child = self
            .bash("TERM", settings)
            .args(["-c", guard, "guard", text])
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Served { child, lines }
    }
}

/// One shell that is typed into, block after block.
pub struct Terminal {
    _shell: Child,
    keyboard: ChildStdin,
    screen: Lines<BufReader<ChildStdout>>,
}

impl Terminal {
    /// What it prints. A command that fails ends the shell, and with it the test.
    pub async fn run(&mut self, text: &str) -> String {
        const END: &str = "-- the block has ended --";
        let typed = format!("{{\n{text}\n}} </dev/null\nprintf '\\n%s\\n' '{END}'\n");
        let seen = async {
            self.keyboard.write_all(typed.as_bytes()).await.ok()?;
            let mut seen = Vec::new();
            loop {
                match self.screen.next_line().await.unwrap()? {
                    line if line == END => break,
                    line => seen.push(line),
                }
            }
            // The line break before the mark is ours.
            Some(seen.join("\n"))
        };
        let seen = timeout(PATIENCE, seen).await.unwrap_or_else(|_| panic!("took too long:\n{text}"));
        seen.unwrap_or_else(|| panic!("failed; what it says is above:\n{text}"))
    }
}

/// A terminal in which something goes on running. Dropping it ends all of it.
pub struct Served {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Served {
    pub async fn line(&mut self) -> String {
        let line = timeout(PATIENCE, self.lines.next_line()).await.expect("a line in time");
        line.unwrap().expect("it goes on running")
    }

    /// The next line that is like this one; there may be others before it.
    pub async fn line_like(&mut self, shown: &str) -> String {
        let look = async {
            loop {
                let line = self.line().await + "\n";
                if alike(shown, &line) {
                    return line;
                }
            }
        };
        timeout(PATIENCE, look).await.unwrap_or_else(|_| panic!("it never printed\n{shown}"))
    }

    /// Ctrl-C, and it has ended.
    pub async fn interrupt(mut self) {
        self.signal("INT");
        timeout(PATIENCE, self.child.wait()).await.expect("it stops in time").unwrap();
    }

    fn signal(&self, signal: &str) {
        let Some(pid) = self.child.id() else { return };
        let sent = std::process::Command::new("kill").args(["-s", signal, "--", &format!("-{pid}")]).status();
        assert!(sent.is_ok_and(|status| status.success()) || std::thread::panicking(), "the group is there");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.signal("KILL");
    }
}

/// What `chronosd dev` tells before the first wake, by its names.
pub fn told(lines: &str) -> HashMap<String, String> {
    let pairs = lines.lines().filter_map(|line| line.trim().split_once(' '));
    pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}
