//! Two tensors element by element: how many differ, where, and by how much.

use ir::diag::{Diagnostic, Result};
use models::Tensor;
use models::checkpoint::Dtype;
use serde::Serialize;

/// Ends of the classes of the histogram, in ulps; the last has what is farther.
const CLASSES: [u64; 6] = [1, 2, 8, 64, 4096, 1 << 20];

/// An element that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Place {
    /// Its index.
    pub index: usize,
    /// Values of both, and their bits as hex.
    pub a: String,
    /// See there.
    pub b: String,
    /// Floats between them, plus one.
    pub ulps: Option<u64>,
}

/// A comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Elements {
    /// Elements of each.
    pub count: usize,
    /// Those whose bits differ.
    pub differ: usize,
    /// The first of them.
    pub first: Option<Place>,
    /// The one that is farthest apart.
    pub largest: Option<Place>,
    /// Differing floats by their distance: up to 1, 2, 8, 64, 4096, 2^20 ulps, farther, not comparable (a NaN).
    pub ulps: Vec<usize>,
    /// Greatest difference, relative to the greatest magnitude of A; none for what is no float.
    pub relative_error: Option<f64>,
}

/// Distance of two floats in steps from one to the next; none for a NaN.
pub fn ulps(a: f32, b: f32) -> Option<u64> {
    // Negative floats count down from zero; both zeros are one place.
    let place = |x: f32| {
        let bits = i64::from(x.to_bits() & 0x7fff_ffff);
        if x.is_sign_negative() { -bits } else { bits }
    };
    (!a.is_nan() && !b.is_nan()).then(|| place(a).abs_diff(place(b)))
}

/// Compares tensors of equally many elements: as floats where both are such, whatever their type, else as bytes.
pub fn compare(a: &Tensor, b: &Tensor) -> Result<Elements> {
    if a.len() != b.len() {
        let m = format!("{} has {:?} elements, {} has {:?}", a.name, a.shape, b.name, b.shape);
        return Err(Diagnostic::new("E0807", m).at(b.file));
    }
    let float = |t: &Tensor| matches!(t.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
    if !float(a) || !float(b) {
        return words(a, b);
    }
    let mut e = Elements { count: a.len(), differ: 0, first: None, largest: None, ulps: vec![], relative_error: None };
    let mut classes = vec![0; CLASSES.len() + 2];
    let (mut greatest, mut apart, mut far) = (0f64, 0f64, None);
    for i in 0..a.len() {
        let (Some(x), Some(y)) = (a.float(i), b.float(i)) else { continue };
        greatest = greatest.max(f64::from(x).abs());
        if x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan() {
            continue;
        }
        let distance = ulps(x, y);
        let shown = |x: f32| format!("{x:e} ({:#010x})", x.to_bits());
        let place = || Place { index: i, a: shown(x), b: shown(y), ulps: distance };
        e.differ += 1;
        e.first.get_or_insert_with(place);
        let class = match distance {
            Some(d) => CLASSES.iter().position(|c| d <= *c).unwrap_or(CLASSES.len()),
            None => CLASSES.len() + 1,
        };
        classes[class] += 1;
        // A NaN is farther than anything.
        let rank = distance.unwrap_or(u64::MAX);
        if far.is_none_or(|f| rank > f) {
            (far, e.largest) = (Some(rank), Some(place()));
        }
        let d = (f64::from(x) - f64::from(y)).abs();
        apart = if d.is_nan() { f64::INFINITY } else { apart.max(d) };
    }
    e.ulps = classes;
    e.relative_error = Some(if apart == 0.0 { 0.0 } else { apart / greatest.max(f64::from(f32::MIN_POSITIVE)) });
    Ok(e)
}

/// The same as bytes.
fn words(a: &Tensor, b: &Tensor) -> Result<Elements> {
    if a.dtype != b.dtype || a.bytes.len() != b.bytes.len() {
        let m = format!("{} is {:?}, {} is {:?}: they cannot be compared", a.name, a.dtype, b.name, b.dtype);
        return Err(Diagnostic::new("E0807", m).at(b.file));
    }
    let size = (a.bytes.len() / a.len().max(1)).max(1);
    let mut e = Elements { count: a.len(), differ: 0, first: None, largest: None, ulps: vec![], relative_error: None };
    for (index, (x, y)) in a.bytes.chunks(size).zip(b.bytes.chunks(size)).enumerate() {
        if x != y {
            let hex = |w: &[u8]| w.iter().rev().fold("0x".to_string(), |s, b| s + &format!("{b:02x}"));
            e.differ += 1;
            e.first.get_or_insert_with(|| Place { index, a: hex(x), b: hex(y), ulps: None });
        }
    }
    Ok(e)
}

impl Elements {
    /// Lines for people.
    pub fn lines(&self) -> Vec<String> {
        let mut out = vec![format!("{} of {} elements differ", self.differ, self.count)];
        let place = |what: &str, p: &Place| {
            let by = p.ulps.map_or(String::new(), |u| format!(", {u} ulp"));
            format!("{what} at {}: {} and {}{by}", p.index, p.a, p.b)
        };
        out.extend(self.first.iter().map(|p| place("first", p)));
        if self.differ > 1 {
            out.extend(self.largest.iter().map(|p| place("farthest", p)));
        }
        let name = |i: usize| match CLASSES.get(i) {
            Some(n) => format!("up to {n}"),
            None if i == CLASSES.len() => "farther".into(),
            None => "NaN".into(),
        };
        let some: Vec<String> =
            self.ulps.iter().enumerate().filter(|(_, n)| **n > 0).map(|(i, n)| format!("{}: {n}", name(i))).collect();
        if !some.is_empty() {
            out.push(format!("ulps {}", some.join(", ")));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(ulps(1.0, f32::from_bits(1f32.to_bits() + 3)), Some(3));
        assert_eq!(ulps(0.0, -0.0), Some(0));
        assert_eq!(ulps(f32::from_bits(1), -f32::from_bits(2)), Some(3));
        assert_eq!(ulps(f32::NAN, 1.0), None);
        assert_eq!(ulps(f32::INFINITY, f32::MAX), Some(1));
    }

    fn tensor<'a>(dtype: Dtype, shape: &'a [usize], bytes: &'a [u8]) -> Tensor<'a> {
        Tensor { name: "t", dtype, shape, bytes, file: "f" }
    }

    #[test]
    fn floats_of_any_type_and_words() {
        let bytes = |x: &[f32]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let a = bytes(&[1.0, 2.0, 4.0, f32::NAN]);
        let mut other = [1.0, 2.0, 4.0, f32::NAN];
        other[1] = f32::from_bits(2f32.to_bits() ^ 1);
        other[2] = 8.0;
        let b = bytes(&other);
        let (a, b) = (tensor(Dtype::F32, &[4], &a), tensor(Dtype::F32, &[2, 2], &b));
        let e = compare(&a, &b).unwrap();
        assert_eq!((e.differ, e.first.as_ref().unwrap().index, e.largest.as_ref().unwrap().index), (2, 1, 2));
        assert_eq!((e.ulps[0], e.ulps[6], e.relative_error), (1, 1, Some(1.0)));
        assert!(e.lines()[1].starts_with("first at 1: 2e0 (0x40000000) and 2.0000002e0 (0x40000001), 1 ulp"), "{:?}", e.lines());
        let half: Vec<u8> = [0x3f80u16, 0x4000, 0x4080, 0x7fc0].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(compare(&a, &tensor(Dtype::BF16, &[4], &half)).unwrap().differ, 0);
        let (x, y) = ([1, 2, 3, 4], [1, 2, 9, 4]);
        let e = compare(&tensor(Dtype::U8, &[4], &x), &tensor(Dtype::U8, &[4], &y)).unwrap();
        assert_eq!((e.differ, e.first.unwrap().index), (1, 2));
        assert_eq!(compare(&a, &tensor(Dtype::U8, &[4], &x)).unwrap_err().code, "E0807");
        assert_eq!(compare(&a, &tensor(Dtype::F32, &[1], &x)).unwrap_err().code, "E0807");
    }
}
