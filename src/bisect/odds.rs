//! What a count of runs is worth. A fault that strikes each run with probability p stays unseen in n runs with probability
//! (1 - p)^n.

/// How sure one wants to be.
const SURE: f64 = 0.95;

/// Runs that show a fault of this frequency at least once with 95 % confidence: the least n with `1 - (1 - p)^n >= 0.95`.
pub fn needed(faults: u32, runs: u32) -> Option<u64> {
    match faults {
        0 => None,
        k if k >= runs => Some(1),
        k => Some(((1.0 - SURE).ln() / (1.0 - f64::from(k) / f64::from(runs)).ln()).ceil() as u64),
    }
}

/// The largest frequency that so many runs without a fault leave possible with 95 % confidence: `1 - 0.05^(1/n)`.
pub fn bound(runs: u32) -> f64 {
    1.0 - (1.0 - SURE).powf(1.0 / f64::from(runs.max(1)))
}

/// What is to be said of so many faults in so many runs.
pub fn line(faults: u32, runs: u32) -> Option<String> {
    match needed(faults, runs) {
        _ if runs < 2 => None,
        None => Some(format!(
            "no difference in {runs} runs: with 95 % confidence fewer than {:.2} % of runs differ",
            100.0 * bound(runs)
        )),
        Some(1) => Some("every run differs".into()),
        Some(n) => Some(format!("a fault in {faults} of {runs} runs needs {n} runs to be seen with 95 % confidence")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_runs() {
        assert_eq!((needed(1, 23), needed(0, 9), needed(9, 9), needed(1, 2)), (Some(68), None, Some(1), Some(5)));
        assert!((bound(59) - 0.0495).abs() < 1e-4);
        assert_eq!(line(1, 1), None);
        assert_eq!(line(0, 20).unwrap(), "no difference in 20 runs: with 95 % confidence fewer than 13.91 % of runs differ");
        assert_eq!(line(1, 23).unwrap(), "a fault in 1 of 23 runs needs 68 runs to be seen with 95 % confidence");
    }
}
