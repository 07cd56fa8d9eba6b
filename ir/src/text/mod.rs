//! What the textual forms of graph, kernel and plan share: the tokens and a cursor for recursive descent.

pub(crate) mod attr;
pub(crate) mod lex;
pub(crate) mod name;
