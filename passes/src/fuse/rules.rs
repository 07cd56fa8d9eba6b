//! The fusion rules. Each inlines one kind of producer into one kind of consumer: the consumer computes the operand itself
//! instead of reading it from memory. All are exact: the same operations in the same order on the same values.
//! A pair that no rule names is never fused.

use super::lang::Kind;
use egg::{Pattern, Rewrite, SymbolLang};
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// A rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Name, for switches and statistics: `norm-into-quantize`.
    pub name: String,
    /// What it does, for `isobit explain`.
    pub about: String,
    /// Does it keep every bit? All rules of this table do.
    pub exact: bool,
    /// Consumer, operand number, producer: the edges it inlines.
    pub edges: Vec<(Kind, usize, Kind)>,
    /// Left and right sides.
    pub patterns: Vec<(String, String)>,
}

/// Producers over rows that any row consumer can compute itself.
const ROW_PRODUCERS: [(&str, Kind); 6] = [
    ("norm", Kind::Norm),
    ("add", Kind::Add),
    ("mul", Kind::Mul),
    ("scale", Kind::Scale),
    ("embed", Kind::Embed),
    ("select", Kind::Select),
];

/// Consumers over rows, with the operands that can be computed.
const ROW_CONSUMERS: [(&str, Kind, &[usize]); 6] = [
    ("norm", Kind::Norm, &[0]),
    ("add", Kind::Add, &[0, 1]),
    ("mul", Kind::Mul, &[0, 1]),
    ("scale", Kind::Scale, &[0]),
    ("select", Kind::Select, &[0]),
    ("quantize", Kind::Quantize, &[0]),
];

/// One producer into one operand.
const SINGLE: [(&str, Kind, usize, Kind, &str); 9] = [
    (
        "quantize-into-matmul",
        Kind::Matmul,
        0,
        Kind::Quantize,
        "every block of the matmul quantizes the row itself and keeps the planes in shared memory",
    ),
    (
        "quantize-into-expert-matmul",
        Kind::ExpertMatmul,
        0,
        Kind::Quantize,
        "every block of the experts' matmul quantizes the row itself",
    ),
    ("matmul-into-softcap", Kind::Softcap, 0, Kind::Matmul, "the softcap is applied to each row as it leaves the matmul"),
    ("matmul-into-scale", Kind::Scale, 0, Kind::Matmul, "the constant factor is applied to each row as it leaves the matmul"),
    ("matmul-into-head-norm", Kind::HeadNorm, 0, Kind::Matmul, "a block computes whole heads and norms them"),
    ("head-norm-into-rope", Kind::Rope, 0, Kind::HeadNorm, "a head is rotated in the registers that normed it"),
    ("rope-into-cache", Kind::KvWrite, 1, Kind::Rope, "keys go to the cache from the registers that rotated them"),
    ("head-norm-into-cache", Kind::KvWrite, 2, Kind::HeadNorm, "values go to the cache from the registers that normed them"),
    ("matmul-into-route", Kind::Route, 0, Kind::Matmul, "one block computes all logits of the router and chooses"),
];

fn arities(k: Kind) -> &'static [usize] {
    match k {
        Kind::Norm | Kind::HeadNorm => &[1, 2],
        Kind::Scale | Kind::Select | Kind::Slice | Kind::Quantize | Kind::Rope | Kind::Softcap => &[1],
        Kind::ExpertMatmul | Kind::KvWrite => &[3],
        _ => &[2],
    }
}

/// `(op ?v ?v0 ?v1)`, with one operand replaced.
fn term(k: Kind, arity: usize, var: &str, slot: Option<(usize, &str)>) -> String {
    let mut out = format!("({} ?{var}", k.symbol());
    for i in 0..arity {
        match slot {
            Some((s, t)) if s == i => out.push_str(&format!(" {t}")),
            _ => out.push_str(&format!(" ?{var}{i}")),
        }
    }
    out + ")"
}

/// Patterns that inline `producer` into operand `slot` of `consumer`.
fn inline(consumer: Kind, slot: usize, producer: Kind) -> Vec<(String, String)> {
    let mut out = vec![];
    for &ca in arities(consumer) {
        for &pa in arities(producer) {
            let p = term(producer, pa, "p", None);
            let lhs = term(consumer, ca, "c", Some((slot, &format!("(mat {p})"))));
            out.push((lhs, term(consumer, ca, "c", Some((slot, &p)))));
        }
    }
    out
}

fn both(consumer: Kind, a: &str, b: &str) -> Vec<(String, String)> {
    let op = consumer.symbol();
    vec![(format!("({op} ?c (mat {a}) (mat {b}))"), format!("({op} ?c {a} {b})"))]
}

fn build() -> Vec<Rule> {
    let mut rules = vec![];
    let mut push = |name: String, about: String, edges: Vec<(Kind, usize, Kind)>, patterns| {
        rules.push(Rule { name, about, exact: true, edges, patterns });
    };
    for (cn, consumer, slots) in ROW_CONSUMERS {
        for (pn, producer) in ROW_PRODUCERS {
            if (consumer, producer) == (Kind::Select, Kind::Select) {
                continue;
            }
            let edges: Vec<_> = slots.iter().map(|&s| (consumer, s, producer)).collect();
            let patterns = slots.iter().flat_map(|&s| inline(consumer, s, producer)).collect();
            let about = format!("a `{cn}` over a row computes its operand, a `{pn}` of the same row, itself");
            push(format!("{pn}-into-{cn}"), about, edges, patterns);
        }
    }
    for (name, consumer, slot, producer, about) in SINGLE {
        push(name.into(), about.into(), vec![(consumer, slot, producer)], inline(consumer, slot, producer));
    }
    let (m, e) = (Kind::Matmul, Kind::ExpertMatmul);
    push(
        "matmuls-into-gelu".into(),
        "gate and up, two matmuls of one quantized row, are computed together and joined as they leave them".into(),
        vec![(Kind::Gelu, 0, m), (Kind::Gelu, 1, m)],
        both(Kind::Gelu, "(matmul ?a ?q ?v)", "(matmul ?b ?q ?w)"),
    );
    push(
        "expert-matmuls-into-gelu".into(),
        "gate and up of the chosen experts are computed together and joined as they leave them".into(),
        vec![(Kind::Gelu, 0, e), (Kind::Gelu, 1, e)],
        both(Kind::Gelu, "(expert_matmul ?a ?q ?v ?r)", "(expert_matmul ?b ?q ?w ?r)"),
    );
    push(
        "matmuls-into-add".into(),
        "two matmuls of one quantized row are computed together and added as they leave them".into(),
        vec![(Kind::Add, 0, m), (Kind::Add, 1, m)],
        both(Kind::Add, "(matmul ?a ?q ?v)", "(matmul ?b ?q ?w)"),
    );
    push(
        "matmul-into-mul".into(),
        "a factor per row of the matrix is applied to each row as it leaves the matmul".into(),
        vec![(Kind::Mul, 0, m)],
        vec![("(mul ?c (mat (matmul ?p ?q ?v)) (weight ?w))".into(), "(mul ?c (matmul ?p ?q ?v) (weight ?w))".into())],
    );
    push(
        "expert-matmul-into-sum".into(),
        "a block computes its rows for all chosen experts and sums them in rank order".into(),
        vec![(Kind::ExpertSum, 0, e)],
        vec![(
            "(expert_sum ?c (mat (expert_matmul ?p ?q ?v ?r)) ?r)".into(),
            "(expert_sum ?c (expert_matmul ?p ?q ?v ?r) ?r)".into(),
        )],
    );
    rules
}

/// All rules.
pub fn rules() -> &'static [Rule] {
    static RULES: LazyLock<Vec<Rule>> = LazyLock::new(build);
    &RULES
}

/// The rule that inlines this edge, if it is not off.
pub fn rule_of(consumer: Kind, slot: usize, producer: Kind, off: &BTreeSet<String>) -> Option<&'static Rule> {
    rules().iter().find(|r| r.edges.contains(&(consumer, slot, producer)) && !off.contains(&r.name))
}

/// What to switch off so that only this rule is left.
pub fn all_but(name: &str) -> BTreeSet<String> {
    rules().iter().map(|r| r.name.clone()).filter(|n| n != name).collect()
}

/// The rules as egg rewrites, named `rule/variant`.
pub fn rewrites(off: &BTreeSet<String>) -> Vec<Rewrite<SymbolLang, ()>> {
    let parse = |t: &str| -> Pattern<SymbolLang> { t.parse().expect("the table holds patterns") };
    rules()
        .iter()
        .filter(|r| !off.contains(&r.name))
        .flat_map(|r| r.patterns.iter().enumerate().map(move |(k, (l, s))| (format!("{}/{k}", r.name), l, s)))
        .map(|(name, l, s)| Rewrite::new(name, parse(l), parse(s)).expect("the right side names no new variable"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_all_rules_parse() {
        let names: BTreeSet<_> = rules().iter().map(|r| &r.name).collect();
        assert_eq!(names.len(), rules().len());
        assert!(rewrites(&BTreeSet::new()).len() >= rules().len());
        assert!(rules().iter().all(|r| r.exact && !r.about.is_empty()));
        let norm = rules().iter().find(|r| r.name == "norm-into-quantize").unwrap();
        let (l, r) = &norm.patterns[1];
        assert_eq!(l, "(quantize ?c (mat (norm ?p ?p0 ?p1)))");
        assert_eq!(r, "(quantize ?c (norm ?p ?p0 ?p1))");
    }

    #[test]
    fn an_edge_has_one_rule() {
        for r in rules() {
            for &(c, s, p) in &r.edges {
                assert_eq!(rule_of(c, s, p, &BTreeSet::new()).unwrap().name, r.name);
            }
        }
    }
}
