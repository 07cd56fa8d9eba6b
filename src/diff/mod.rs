//! Where two runs, or two programs, differ first. One file for each kind of thing that is compared.

pub mod elements;
pub mod folders;
pub mod tensors;
pub mod traces;

/// What a comparison says.
pub struct Verdict {
    /// Nothing differs.
    pub equal: bool,
    /// For people.
    pub text: String,
    /// For programs.
    pub json: serde_json::Value,
}
