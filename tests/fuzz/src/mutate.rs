//! Inputs from inputs: flipped bytes, other tokens, moved lines, nests, parts of other inputs. A function of the seed.

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if there is none.
    pub fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.number() % n as u64) as usize }
    }
}

/// Longest input.
pub const MAX: usize = 1 << 16;

#[rustfmt::skip]
const NUMBERS: &[&str] = &[
    "0", "1", "-1", "2", "7", "8", "31", "32", "33", "63", "64", "65", "127", "255", "256", "4095", "4096", "65535", "65536", "262143",
    "16777216", "2147483647", "2147483648", "4294967295", "4294967296", "9223372036854775807", "9223372036854775808",
    "18446744073709551615", "18446744073709551616", "99999999999999999999999", "-9223372036854775808", "1e999", "1e-999", "0.5",
    "NaN", "0x0", "0x7fc00000", "0xffffffff", "0xffffffffffffffff", "null", "true", "false", "\"\"", "[]", "{}",
];

/// Byte ranges of the tokens of a text: words and numbers, and each other character by itself.
fn tokens(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut out = vec![];
    let mut at = 0;
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'.';
    while at < bytes.len() {
        let from = at;
        at += 1;
        if word(bytes[from]) {
            while at < bytes.len() && word(bytes[at]) {
                at += 1;
            }
        } else {
            while at < bytes.len() && bytes[at] & 0xc0 == 0x80 {
                at += 1;
            }
        }
        if !bytes[from].is_ascii_whitespace() {
            out.push((from, at));
        }
    }
    out
}

fn lines(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut from = 0;
    bytes
        .split_inclusive(|b| *b == b'\n')
        .map(|l| {
            let range = (from, from + l.len());
            from = range.1;
            range
        })
        .collect()
}

/// One to eight changes to one of the inputs.
pub fn mutate(r: &mut Random, corpus: &[Vec<u8>], words: &[Vec<u8>]) -> Vec<u8> {
    let mut out = corpus.get(r.below(corpus.len())).cloned().unwrap_or_default();
    for _ in 0..1 + r.below(8) {
        change(r, &mut out, corpus, words);
        out.truncate(MAX);
    }
    out
}

fn change(r: &mut Random, out: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[Vec<u8>]) {
    let put = |out: &mut Vec<u8>, range: (usize, usize), bytes: &[u8]| {
        out.splice(range.0..range.1, bytes.iter().copied());
    };
    let at = r.below(out.len() + 1);
    match r.below(16) {
        0 if !out.is_empty() => {
            let at = r.below(out.len());
            out[at] ^= 1 << r.below(8);
        }
        1 if !out.is_empty() => {
            let at = r.below(out.len());
            out[at] = r.number() as u8;
        }
        2 => put(out, (at, (at + r.below(32)).min(out.len())), b""),
        3 => {
            let other = corpus.get(r.below(corpus.len())).map_or(&[][..], |o| o);
            let from = r.below(other.len() + 1);
            let to = (from + r.below(200)).min(other.len());
            put(out, (at, at), &other[from..to]);
        }
        4 => {
            // The first half of one, the second of another.
            let other = corpus.get(r.below(corpus.len())).map_or(&[][..], |o| o);
            let from = r.below(other.len() + 1);
            put(out, (at, out.len()), &other[from..]);
        }
        5 => out.truncate(at),
        6 => {
            let n = 1usize << r.below(13);
            let word = words.get(r.below(words.len())).map_or(&b"("[..], |w| w);
            let nest = word.repeat(n);
            put(out, (at, at), &nest[..nest.len().min(MAX / 2)]);
        }
        7..=9 => {
            // A line again, away, or somewhere else.
            let all = lines(out);
            if all.is_empty() {
                return;
            }
            let (a, b) = (all[r.below(all.len())], all[r.below(all.len())]);
            let text = out[a.0..a.1].to_vec();
            match r.below(3) {
                0 => put(out, (b.0, b.0), &text),
                1 => put(out, a, b""),
                _ => put(out, b, &text),
            }
        }
        _ => {
            let all = tokens(out);
            if all.is_empty() {
                let word = words.get(r.below(words.len())).map_or(&b"0"[..], |w| w);
                return put(out, (at, at), word);
            }
            let a = all[r.below(all.len())];
            let own = all[r.below(all.len())];
            let own = out[own.0..own.1].to_vec();
            match r.below(5) {
                0 => put(out, a, NUMBERS[r.below(NUMBERS.len())].as_bytes()),
                1 => put(out, a, words.get(r.below(words.len())).map_or(&b""[..], |w| w)),
                2 => put(out, (a.0, a.0), words.get(r.below(words.len())).map_or(&b" "[..], |w| w)),
                3 => put(out, a, &own),
                _ => {
                    // Another number near it.
                    let text = String::from_utf8_lossy(&out[a.0..a.1]).into_owned();
                    let near = text.parse::<u64>().ok().map(|n| n.wrapping_add(r.below(3) as u64).wrapping_sub(1).to_string());
                    put(out, a, near.unwrap_or_default().as_bytes());
                }
            }
        }
    }
}
