//! Servers that outlive single tests and end with the run.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
};

/// Starts `testbed/<script> run` on a directory of its own and returns what it says behind `ready `. The script ends its
/// server and removes the directory when this process is gone, however that happens: nothing has to be stopped.
pub fn run(script: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("testbed").join(script);
    let directory = std::env::temp_dir().join(format!(
        "chronos-it-{}-{}",
        script.file_stem().unwrap().to_string_lossy(),
        std::process::id()
    ));
    let (said, ready) = mpsc::channel();
    // A thread of its own that waits for the script, so that it is reaped and its words are passed on.
    thread::spawn(move || {
        let mut child = Command::new(&script)
            .arg("run")
            .arg(&directory)
            .env("TESTBED_PARENT", std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", script.display()));
        for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
            if let Some(value) = line.strip_prefix("ready ") {
                said.send(value.to_owned()).unwrap();
            }
        }
        let status = child.wait().unwrap();
        eprintln!("{} ended: {status}", script.display());
    });
    ready.recv().unwrap_or_else(|_| panic!("a server of the test bed did not start; its words are above"))
}
