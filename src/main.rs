//! `chronosd`: see [`chronos::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    chronos::cli::main()
}
