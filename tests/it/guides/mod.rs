//! The guides in `docs/guides` are true: what they tell the reader to type is typed, to the letter, and what they say will be seen is
//! compared with what is. `…` stands for whatever differs from run to run.

mod agents;
mod gitops;
mod operators;
mod page;
mod router;
mod service_calls;
mod sessions;
mod terminal;

use page::{Page, Role};

/// A program in a guide is one that a reader takes in at a glance.
const LONGEST_PROGRAM: usize = 30;

#[test]
fn every_block_of_the_guides_is_run_or_says_why_not_and_programs_are_short() {
    for name in ["agents.md", "router.md"] {
        let page = Page::read(name);
        let programs = page.blocks.iter().filter(|block| matches!(block.role, Role::Program(_)));
        let lengths: Vec<(usize, String)> =
            programs.map(|block| (block.text.lines().count(), block.place.clone())).collect();
        assert_eq!(lengths.len(), 2, "{name} has a program in Python and one in TypeScript");
        for (lines, place) in lengths {
            assert!(lines <= LONGEST_PROGRAM, "the program at {place} has {lines} lines");
        }
    }
}

#[test]
fn a_block_that_nobody_would_run_is_found() {
    let told = |text: &str| Page::parse("x.md", text).unwrap_err();
    let whole = "words\n\n```sh run\necho a\n```\n```text output\na\n```\n";
    let blocks = Page::parse("x.md", whole).unwrap().blocks;
    assert_eq!(blocks.iter().map(|block| block.text.as_str()).collect::<Vec<_>>(), ["echo a\n", "a\n"]);
    assert!(told("```sh\necho a\n```\n").starts_with("x.md:1: "));
    assert!(told("\n```sh runs\necho a\n```\n").starts_with("x.md:2: "));
    assert!(told("```sh not-run\necho a\n```\n").contains("why"));
    assert!(told("- a list\n  ```sh run\n  echo a\n  ```\n").contains("start of a line"));
    assert!(told("~~~\necho a\n~~~\n").contains("start of a line"));
    assert!(told("```sh run\necho a\n").contains("does not end"));
}

#[test]
fn an_output_is_compared_but_for_what_the_guide_leaves_open() {
    assert!(page::alike("a …, b …\n", "a 1, b 2\n3\n") && page::alike("…\n", "x\n") && page::alike("a\n", "a\n"));
    assert!(!page::alike("a …, b\n", "a 1, c\n") && !page::alike("a\n", "ab\n") && !page::alike("a…a\n", "a\n"));
}
