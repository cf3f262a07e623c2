//! `commands.md`: what `--help` says, of every command.

use std::fmt::Write;

use clap::Command;

use super::head;

pub fn page(mut root: Command) -> String {
    let about = "\
What `--help` says of each. `chronosd run` takes a flag for each of the [settings](settings.md) that is no secret, which are not repeated here.

Exit codes of every command: 0 done, 1 refused or a problem found, 2 usage.
";
    root.build(); // so that each knows what it is called by
    let mut told = head("Commands", about);
    tell(&root, "chronosd", &mut told);
    told
}

fn tell(command: &Command, called: &str, told: &mut String) {
    let help = command.clone().render_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    write!(told, "\n## {called}\n\n```text\n{}\n```\n", help.join("\n").trim_end()).expect("a String takes all");
    let shown = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    for subcommand in command.get_subcommands().filter(shown) {
        tell(subcommand, &format!("{called} {}", subcommand.get_name()), told);
    }
}
