//! Covering sets: rows of one level per factor, chosen so that every pair of levels of every two factors stands in a row.
//! Greedy, and a function of the candidates alone.

/// Every combination.
pub fn product(levels: &[usize]) -> Vec<Vec<usize>> {
    levels.iter().fold(vec![vec![]], |rows, &n| {
        rows.iter().flat_map(|r| (0..n).map(move |l| r.iter().copied().chain([l]).collect())).collect()
    })
}

/// Candidates that together hold every pair: always the one that adds most, the first of equals.
pub fn cover(levels: &[usize], candidates: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let number = Pairs::of(levels);
    let held: Vec<Vec<usize>> = candidates.iter().map(|r| number.held(r)).collect();
    let (mut left, mut out) = (vec![true; number.count], vec![]);
    loop {
        let gain = |i: &usize| held[*i].iter().filter(|&&p| left[p]).count();
        let best = (0..candidates.len()).rev().max_by_key(gain).filter(|i| gain(i) > 0);
        let Some(best) = best else { break };
        held[best].iter().for_each(|&p| left[p] = false);
        out.push(candidates[best].clone());
    }
    assert!(!left.contains(&true), "no candidate holds some pair of levels");
    out
}

/// How many pairs of levels there are, and how many of them the rows hold.
pub fn covered(levels: &[usize], rows: &[Vec<usize>]) -> (usize, usize) {
    let number = Pairs::of(levels);
    let mut seen = vec![false; number.count];
    rows.iter().flat_map(|r| number.held(r)).for_each(|p| seen[p] = true);
    (number.count, seen.into_iter().filter(|s| *s).count())
}

/// Numbers of pairs of levels.
struct Pairs {
    /// First number of each two factors, in order, and the levels of the second.
    first: Vec<(usize, usize)>,
    count: usize,
}

impl Pairs {
    fn of(levels: &[usize]) -> Pairs {
        let mut p = Pairs { first: vec![], count: 0 };
        for (f, a) in levels.iter().enumerate() {
            for b in &levels[f + 1..] {
                p.first.push((p.count, *b));
                p.count += a * b;
            }
        }
        p
    }

    fn held(&self, row: &[usize]) -> Vec<usize> {
        let two = row.iter().enumerate().flat_map(|(f, a)| row[f + 1..].iter().map(move |b| (a, b)));
        two.zip(&self.first).map(|((a, b), (first, n))| first + a * n + b).collect()
    }
}
