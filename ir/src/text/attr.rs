//! Attributes `key=value` of graph nodes and plan entries: numbers, floats as bits, reduction orders.

use super::lex::{Cursor, Tok};
use crate::diag::{Diagnostic, Result};
use crate::order::{ReductionOrder, Take, Tree};

/// Largest u32, as a limit of [`Cursor::int`].
pub(crate) const U32: i64 = u32::MAX as i64;

/// Reads attributes; the `more_` forms expect a comma first.
pub(crate) trait ReadAttr {
    /// `name=`
    fn key(&mut self, name: &str) -> Result<()>;
    /// `name=12`
    fn attr_u32(&mut self, name: &str) -> Result<u32>;
    /// `, name=12`
    fn more_u32(&mut self, name: &str) -> Result<u32>;
    /// `name=0x3f800000`, `name="1.0"` or `name=1`
    fn attr_f32(&mut self, name: &str) -> Result<f32>;
    /// The same after a comma.
    fn more_f32(&mut self, name: &str) -> Result<f32>;
    /// As an f32, with 64 bits, after a comma.
    fn more_f64(&mut self, name: &str) -> Result<f64>;
    /// `name=sum(...)` or `name=none`
    fn attr_order(&mut self, name: &str) -> Result<Option<ReductionOrder>>;
    /// `sum(lanes=8, take=strided, tree=pair)`
    fn sum_order(&mut self) -> Result<ReductionOrder>;
}

impl ReadAttr for Cursor<'_> {
    fn key(&mut self, name: &str) -> Result<()> {
        self.word(name)?;
        self.punct('=')
    }

    fn attr_u32(&mut self, name: &str) -> Result<u32> {
        self.key(name)?;
        Ok(self.int(name, 0, U32)? as u32)
    }

    fn more_u32(&mut self, name: &str) -> Result<u32> {
        self.punct(',')?;
        self.attr_u32(name)
    }

    fn attr_f32(&mut self, name: &str) -> Result<f32> {
        self.key(name)?;
        let (bits, decimal) = float(self, 32)?;
        match decimal {
            None => Ok(f32::from_bits(bits as u32)),
            Some((text, place)) => match text.parse::<f32>() {
                Ok(x) if x.is_finite() => Ok(x),
                _ => Err(not_finite(&text, place)),
            },
        }
    }

    fn more_f32(&mut self, name: &str) -> Result<f32> {
        self.punct(',')?;
        self.attr_f32(name)
    }

    fn more_f64(&mut self, name: &str) -> Result<f64> {
        self.punct(',')?;
        self.key(name)?;
        let (bits, decimal) = float(self, 64)?;
        match decimal {
            None => Ok(f64::from_bits(bits)),
            Some((text, place)) => match text.parse::<f64>() {
                Ok(x) if x.is_finite() => Ok(x),
                _ => Err(not_finite(&text, place)),
            },
        }
    }

    fn attr_order(&mut self, name: &str) -> Result<Option<ReductionOrder>> {
        self.key(name)?;
        if self.eat_word("none") {
            return Ok(None);
        }
        self.sum_order().map(Some)
    }

    fn sum_order(&mut self) -> Result<ReductionOrder> {
        self.word("sum")?;
        self.punct('(')?;
        let lanes = self.attr_u32("lanes")?;
        self.punct(',')?;
        self.key("take")?;
        let take = match self.peek().tok {
            Tok::Ident("strided") => Take::Strided,
            Tok::Ident("contiguous") => Take::Contiguous,
            _ => return Err(self.unexpected("`strided` or `contiguous`")),
        };
        self.next();
        self.punct(',')?;
        self.key("tree")?;
        let tree = match self.peek().tok {
            Tok::Ident("pair") => Tree::Pair,
            Tok::Ident("fold") => Tree::Fold,
            _ => return Err(self.unexpected("`pair` or `fold`")),
        };
        self.next();
        self.punct(')')?;
        Ok(ReductionOrder { lanes, take, tree })
    }
}

fn not_finite(text: &str, place: String) -> Diagnostic {
    Diagnostic::new("E0103", format!("\"{text}\" is no decimal number in range")).at(place)
}

/// Bits, or the text of a decimal and its place.
fn float(c: &mut Cursor, width: u32) -> Result<(u64, Option<(String, String)>)> {
    let t = c.peek();
    let r = match t.tok {
        Tok::Int { neg: false, abs, hex: true } if width == 64 || abs <= U32 as u64 => (abs, None),
        Tok::Int { neg, abs, hex: false } => (0, Some((format!("{}{abs}", if neg { "-" } else { "" }), t.place()))),
        Tok::Str(s) => (0, Some((s.to_string(), t.place()))),
        _ => return Err(c.unexpected(&format!("a float: {width} bits in hex, or a decimal in quotes"))),
    };
    c.next();
    Ok(r)
}
