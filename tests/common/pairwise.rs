//! A small covering set: rows over factors so that every pair of levels of every two factors stands in a row. Greedy, and a
//! function of the numbers of levels alone.

use std::collections::BTreeSet;

type Pair = ((usize, usize), (usize, usize));

/// Rows of one level per factor.
pub fn rows(levels: &[usize]) -> Vec<Vec<usize>> {
    let mut left = pairs(levels);
    let mut out: Vec<Vec<usize>> = vec![];
    while let Some(&((f, a), (g, b))) = left.iter().next() {
        let mut row: Vec<Option<usize>> = vec![None; levels.len()];
        (row[f], row[g]) = (Some(a), Some(b));
        for h in 0..levels.len() {
            if row[h].is_some() {
                continue;
            }
            let gain = |level: usize| {
                let set = row.iter().enumerate().filter_map(|(k, l)| l.map(|l| (k, l)));
                set.filter(|&other| left.contains(&pair((h, level), other))).count()
            };
            // The first of the best, counted from a place that moves, so that levels take turns.
            let turn = out.len();
            let best = (0..levels[h]).map(|l| (l + turn) % levels[h]).rev().max_by_key(|&l| gain(l));
            row[h] = best;
        }
        let row: Vec<usize> = row.into_iter().flatten().collect();
        for p in of_row(&row) {
            left.remove(&p);
        }
        out.push(row);
    }
    out
}

/// Every combination.
pub fn product(levels: &[usize]) -> Vec<Vec<usize>> {
    levels.iter().fold(vec![vec![]], |rows, &n| {
        rows.iter().flat_map(|r| (0..n).map(move |l| r.iter().copied().chain([l]).collect())).collect()
    })
}

/// Is every pair in some row?
pub fn covers(levels: &[usize], rows: &[Vec<usize>]) -> bool {
    let seen: BTreeSet<Pair> = rows.iter().flat_map(|r| of_row(r)).collect();
    pairs(levels).is_subset(&seen)
}

fn pair(a: (usize, usize), b: (usize, usize)) -> Pair {
    if a < b { (a, b) } else { (b, a) }
}

fn of_row(row: &[usize]) -> Vec<Pair> {
    let at = |f: usize| (f, row[f]);
    (0..row.len()).flat_map(|f| (f + 1..row.len()).map(move |g| (at(f), at(g)))).collect()
}

fn pairs(levels: &[usize]) -> BTreeSet<Pair> {
    let mut out = BTreeSet::new();
    for f in 0..levels.len() {
        for g in f + 1..levels.len() {
            out.extend((0..levels[f]).flat_map(|a| (0..levels[g]).map(move |b| ((f, a), (g, b)))));
        }
    }
    out
}
