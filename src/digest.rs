//! Digests of logits: BLAKE3 over the rows of all positions as little-endian f32, without padding; and a number for each row,
//! to find where two runs part.

use ir::diag::{Diagnostic, Result};

/// Logits as they come.
#[derive(Clone, Default)]
pub struct Digest {
    all: blake3::Hasher,
    rows: Vec<[u8; 8]>,
    bytes: Vec<u8>,
}

impl Digest {
    /// Adds a row.
    pub fn row(&mut self, row: &[f32]) {
        self.bytes.clear();
        self.bytes.extend(row.iter().flat_map(|x| x.to_le_bytes()));
        self.all.update(&self.bytes);
        let hash = blake3::hash(&self.bytes);
        self.rows.push(*hash.as_bytes().first_chunk().unwrap_or(&[0; 8]));
    }

    /// Of all rows, 64 hex digits.
    pub fn hex(&self) -> String {
        self.all.finalize().to_hex().to_string()
    }

    /// Rows that were added.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Rows that are others in `other`, of those that both have.
    pub fn differing(&self, other: &Digest) -> usize {
        self.rows.iter().zip(&other.rows).filter(|(a, b)| a != b).count()
    }

    /// Is this its last row?
    pub fn ends_with(&self, row: &[f32]) -> bool {
        let mut other = Digest::default();
        other.row(row);
        self.rows.last() == other.rows.first()
    }

    /// The first row that is another in `other`, or is in one of them only.
    pub fn parts_from(&self, other: &Digest) -> Option<usize> {
        let common = self.rows.iter().zip(&other.rows).position(|(a, b)| a != b);
        common.or((self.rows.len() != other.rows.len()).then_some(self.rows.len().min(other.rows.len())))
    }
}

/// A turn of a conversation: where its rows of logits begin, the ids that were generated, and the logits.
#[derive(Clone, Default)]
pub struct Turn {
    /// Position of the first row.
    pub from: usize,
    /// Generated ids.
    pub ids: Vec<u32>,
    /// Logits of all positions that were computed.
    pub logits: Digest,
}

/// Refuses a repeat of a conversation that is not the first as bits.
pub fn same(first: &[Turn], other: &[Turn], number: u32, of: u32) -> Result<()> {
    let differ = |what: String| {
        let message = format!("repeat {number} of {of} gave other logits than the first: {what}");
        Err(Diagnostic::new("E0798", message).hint("the program or the machine is at fault: no two runs may differ"))
    };
    for (t, (a, b)) in first.iter().zip(other).enumerate() {
        if let Some(row) = a.logits.parts_from(&b.logits) {
            return differ(format!("turn {}, from position {} on", t + 1, a.from + row));
        }
        if let Some(i) = a.ids.iter().zip(&b.ids).position(|(a, b)| a != b) {
            return differ(format!("turn {}, generated token {} is {} and was {}", t + 1, i + 1, b.ids[i], a.ids[i]));
        }
    }
    match first.len() == other.len() {
        true => Ok(()),
        false => differ(format!("{} turns in place of {}", other.len(), first.len())),
    }
}

/// One digest of all turns: of one turn its own.
pub fn of_turns(turns: &[Turn]) -> String {
    if let [turn] = turns {
        return turn.logits.hex();
    }
    let mut all = blake3::Hasher::new();
    turns.iter().for_each(|t| _ = all.update(t.logits.hex().as_bytes()));
    all.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(from: usize, rows: &[[f32; 3]], ids: &[u32]) -> Turn {
        let mut t = Turn { from, ids: ids.into(), ..Turn::default() };
        rows.iter().for_each(|r| t.logits.row(r));
        t
    }

    #[test]
    fn a_bit_of_one_row_is_found() {
        let rows = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0]];
        let talk = |edit: &dyn Fn(&mut [[f32; 3]; 3])| {
            let mut later = rows;
            edit(&mut later);
            vec![turn(0, &rows, &[7, 8]), turn(3, &later, &[9])]
        };
        let first = talk(&|_| {});
        assert!(same(&first, &talk(&|_| {}), 2, 9).is_ok());
        assert_eq!(of_turns(&first), of_turns(&talk(&|_| {})));
        type Fault<'a> = &'a dyn Fn(&mut [[f32; 3]; 3]);
        let faults: [Fault; 2] = [&|r| r[1][2] = f32::from_bits(5f32.to_bits() ^ 1), &|r| r[1][0] = -r[1][0]];
        for fault in faults {
            let d = same(&first, &talk(fault), 7, 9).unwrap_err();
            assert_eq!(d.code, "E0798");
            assert!(d.message.starts_with("repeat 7 of 9 gave") && d.message.ends_with("turn 2, from position 4 on"), "{d}");
            assert_ne!(of_turns(&first), of_turns(&talk(fault)));
        }
        // The sign of a zero is a bit like others.
        assert!(same(&first, &talk(&|r| r[0][0] = -0.0), 2, 9).unwrap_err().message.ends_with("from position 3 on"));
        let d = same(&first, &[first[0].clone(), Turn { ids: vec![4], ..first[1].clone() }], 2, 9).unwrap_err();
        assert!(d.message.ends_with("turn 2, generated token 1 is 4 and was 9"), "{d}");
        assert!(same(&first, &first[..1], 2, 9).unwrap_err().message.ends_with("1 turns in place of 2"));
        let shorter = [turn(0, &rows[..2], &[7, 8]), first[1].clone()];
        assert!(same(&first, &shorter, 2, 9).unwrap_err().message.ends_with("turn 1, from position 2 on"));
        assert!(first[0].logits.ends_with(&rows[2]) && !first[0].logits.ends_with(&rows[1]));
    }
}
