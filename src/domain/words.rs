//! Enums whose values are words in tables and on the wire.

/// An enum, its words, and the way back from a word, which may be unknown.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident($unknown:ident, $what:literal) { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant),+
        }

        #[doc = concat!("A word that is no ", $what, ".")]
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        #[error("{0:?} is no {what}", what = $what)]
        pub struct $unknown(String);

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = $unknown;

            fn try_from(text: String) -> Result<Self, $unknown> {
                Self::ALL.iter().copied().find(|known| known.as_str() == text).ok_or($unknown(text))
            }
        }
    };
}

pub(super) use words;
