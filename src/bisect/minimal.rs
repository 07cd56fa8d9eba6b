//! Delta debugging (Zeller and Hildebrandt): of a set that makes a difference, a smallest part that does, in the sense that
//! leaving out any one member makes none. Parts that cannot be tried count as making none.

/// A smallest part of `0..n` for which `differs` says yes; all of it is known to. Errors of a trial end the search.
pub fn set<E>(n: usize, differs: &mut dyn FnMut(&[usize]) -> Result<bool, E>) -> Result<Vec<usize>, E> {
    let mut all: Vec<usize> = (0..n).collect();
    let mut parts = 2;
    while all.len() > 1 {
        let size = all.len().div_ceil(parts);
        let pieces: Vec<Vec<usize>> = all.chunks(size).map(<[usize]>::to_vec).collect();
        let rest = |piece: &[usize]| all.iter().copied().filter(|i| !piece.contains(i)).collect::<Vec<_>>();
        // With two pieces the one's rest is the other.
        let rests: Vec<Vec<usize>> = if pieces.len() > 2 { pieces.iter().map(|p| rest(p)).collect() } else { vec![] };
        let mut smaller = None;
        for (part, next) in pieces.iter().map(|p| (p, 2)).chain(rests.iter().map(|r| (r, parts - 1))) {
            if differs(part)? {
                smaller = Some((part.clone(), next));
                break;
            }
        }
        match smaller {
            Some((part, next)) => (all, parts) = (part, next.max(2)),
            None if parts < all.len() => parts = (2 * parts).min(all.len()),
            None => break,
        }
    }
    Ok(all)
}

/// A number N of `1..=last` for which the first N decisions make a difference and the first N - 1 make none; 0 if none of
/// them already make one. All of them are known to.
pub fn number<E>(last: u64, differs: &mut dyn FnMut(u64) -> Result<bool, E>) -> Result<u64, E> {
    if differs(0)? {
        return Ok(0);
    }
    let (mut none, mut some) = (0, last);
    while some - none > 1 {
        let middle = none + (some - none) / 2;
        *(if differs(middle)? { &mut some } else { &mut none }) = middle;
    }
    Ok(some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_sets() {
        for (n, want) in
            [(1, vec![0]), (2, vec![1]), (9, vec![4]), (9, vec![0, 8]), (16, vec![3, 4, 11]), (5, vec![0, 1, 2, 3, 4])]
        {
            let mut trials = 0;
            let found = set::<()>(n, &mut |part| {
                trials += 1;
                Ok(want.iter().all(|w| part.contains(w)))
            });
            assert_eq!(found, Ok(want));
            // The bound of delta debugging.
            assert!(trials <= n * n + 3 * n, "{trials}");
        }
        assert_eq!(set(3, &mut |_| Err("broken")), Err("broken"));
    }

    #[test]
    fn numbers() {
        for last in 1..40 {
            for want in 0..=last {
                assert_eq!(number::<()>(last, &mut |n| Ok(n >= want)), Ok(want));
            }
        }
    }
}
