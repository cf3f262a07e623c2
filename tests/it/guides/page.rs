//! A guide, read as the list of its code blocks. What a block is for stands in its first line, behind the language, where it is not
//! shown: ```` ```sh run ````.

use std::{fs, path::Path};

#[derive(Debug)]
pub struct Page {
    pub blocks: Vec<Block>,
}

#[derive(Debug)]
pub struct Block {
    /// File and line.
    pub place: String,
    pub role: Role,
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// The reader types it, in the one terminal of the page.
    Run,
    /// What the block before it prints.
    Output,
    /// A resource that the reader has in the cluster from here on.
    Applied,
    /// Goes on running in a terminal of its own: `serve`, or `serve=receiver.py` where a page has several.
    Serve(Option<String>),
    /// Says which variables to set; the values are the reader's.
    Set,
    /// The reader saves it under this name.
    Program(String),
    /// What `chronosd dev` prints of the wake of the alarm just made.
    Wake,
    /// What a receiver prints of the wake of the page's alarm.
    Woken,
    /// An alarm as it is sent, and the headers and the body of its wake.
    Alarm,
    Headers,
    Body,
    NotRun,
}

impl Page {
    pub fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guides").join(name);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self::parse(name, &text).unwrap_or_else(|told| panic!("docs/guides/{told}"))
    }

    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        let mut blocks = Vec::new();
        let mut lines = text.lines().zip(1..);
        while let Some((line, number)) = lines.next() {
            let place = format!("{name}:{number}");
            let Some(told) = line.strip_prefix("```") else {
                if ["```", "~~~"].iter().any(|fence| line.trim_start().starts_with(fence)) {
                    return Err(format!("{place}: a block begins with ``` at the start of a line, or nobody runs it"));
                }
                continue;
            };
            let role = told.split_once(' ').and_then(|(_, role)| Role::of(role));
            let role = role.ok_or_else(|| {
                format!("{place}: ```{told} does not say what the block is for (run, output, …), or not-run: and why")
            })?;
            let mut text = String::new();
            loop {
                match lines.next() {
                    None => return Err(format!("{place}: the block does not end")),
                    Some(("```", _)) => break,
                    Some((line, _)) => text.extend([line, "\n"]),
                }
            }
            blocks.push(Block { place, role, text });
        }
        Ok(Self { blocks })
    }

    /// The text of the block of this role. There is one, or several that say the same: none is passed over.
    pub fn text(&self, role: &Role) -> &str {
        let mut texts: Vec<&str> =
            self.blocks.iter().filter(|block| block.role == *role).map(|block| block.text.as_str()).collect();
        texts.dedup();
        assert_eq!(texts.len(), 1, "blocks {role:?} of the page: {texts:?}");
        texts[0]
    }
}

impl Role {
    fn of(told: &str) -> Option<Self> {
        match told.split_once('=') {
            Some(("program", name)) => return Some(Self::Program(name.to_owned())),
            Some(("serve", name)) => return Some(Self::Serve(Some(name.to_owned()))),
            Some(_) | None => {}
        }
        match told {
            "run" => Some(Self::Run),
            "output" => Some(Self::Output),
            "applied" => Some(Self::Applied),
            "serve" => Some(Self::Serve(None)),
            "set" => Some(Self::Set),
            "wake" => Some(Self::Wake),
            "woken" => Some(Self::Woken),
            "alarm" => Some(Self::Alarm),
            "headers" => Some(Self::Headers),
            "body" => Some(Self::Body),
            _ => told.strip_prefix("not-run: ").map(|_why| Self::NotRun),
        }
    }
}

impl Block {
    /// That this is what the guide says will be seen.
    pub fn assert_shows(&self, seen: &str) {
        let Self { place, text, .. } = self;
        assert!(alike(text, seen), "docs/guides/{place} shows\n{text}\nand what is seen is\n{seen}");
    }
}

/// Whether `seen` is `shown`, where each `…` stands for any text.
pub fn alike(shown: &str, seen: &str) -> bool {
    let mut parts = shown.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = seen.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}
