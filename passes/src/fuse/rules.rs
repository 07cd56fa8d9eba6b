//! The fusion rules. Each inlines one kind of producer into one kind of consumer: the consumer computes the operand itself
//! instead of reading it from memory. All are exact: the same operations in the same order on the same values.
//! A pair that no rule names is never fused.

use super::lang::Kind;
use crate::options::Options;
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
const ROW_PRODUCERS: [(&str, Kind); 7] = [
    ("norm", Kind::Norm),
    ("add", Kind::Add),
    ("mul", Kind::Mul),
    ("scale", Kind::Scale),
    ("embed", Kind::Embed),
    ("select", Kind::Select),
    ("slice", Kind::Slice),
];

/// Consumers over rows, with the operands that can be computed.
const ROW_CONSUMERS: [(&str, Kind, &[usize]); 8] = [
    ("norm", Kind::Norm, &[0]),
    ("add", Kind::Add, &[0, 1]),
    ("mul", Kind::Mul, &[0, 1]),
    ("scale", Kind::Scale, &[0]),
    ("select", Kind::Select, &[0]),
    ("quantize", Kind::Quantize, &[0]),
    ("linear", Kind::Linear, &[0]),
    ("expert-linear", Kind::ExpertLinear, &[0]),
];

/// One producer into one operand.
const SINGLE: [(&str, Kind, usize, Kind, &str); 5] = [
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
    ("head-norm-into-rope", Kind::Rope, 0, Kind::HeadNorm, "a head is rotated in the registers that normed it"),
    ("rope-into-cache", Kind::KvWrite, 1, Kind::Rope, "keys go to the cache from the registers that rotated them"),
    ("head-norm-into-cache", Kind::KvWrite, 2, Kind::HeadNorm, "values go to the cache from the registers that normed them"),
];

/// What follows a matmul in its kernel: the end of the rule's name, the operation, what it does.
const AFTER: [(&str, Kind, &str); 4] = [
    ("softcap", Kind::Softcap, "the softcap is applied to each row as it leaves the matmul"),
    ("scale", Kind::Scale, "the constant factor is applied to each row as it leaves the matmul"),
    ("head-norm", Kind::HeadNorm, "a block computes whole heads and norms them"),
    ("route", Kind::Route, "one block computes all logits of the router and chooses"),
];

fn arities(k: Kind) -> &'static [usize] {
    match k {
        Kind::Norm | Kind::HeadNorm => &[1, 2],
        Kind::Scale | Kind::Select | Kind::Slice | Kind::Quantize | Kind::Rope | Kind::Softcap => &[1],
        Kind::ExpertMatmul | Kind::ExpertLinear | Kind::KvWrite => &[3],
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
    // The same for matmuls on exact integers and for those with plain weights.
    for (name, m, e, row) in
        [("matmul", Kind::Matmul, Kind::ExpertMatmul, "quantized row"), ("linear", Kind::Linear, Kind::ExpertLinear, "row")]
    {
        let (ms, es) = (m.symbol(), e.symbol());
        for (end, consumer, about) in AFTER {
            push(format!("{name}-into-{end}"), about.into(), vec![(consumer, 0, m)], inline(consumer, 0, m));
        }
        push(
            format!("{name}s-into-gelu"),
            format!("gate and up, two matmuls of one {row}, are computed together and joined as they leave them"),
            vec![(Kind::Gelu, 0, m), (Kind::Gelu, 1, m)],
            both(Kind::Gelu, &format!("({ms} ?a ?q ?v)"), &format!("({ms} ?b ?q ?w)")),
        );
        push(
            format!("expert-{name}s-into-gelu"),
            "gate and up of the chosen experts are computed together and joined as they leave them".into(),
            vec![(Kind::Gelu, 0, e), (Kind::Gelu, 1, e)],
            both(Kind::Gelu, &format!("({es} ?a ?q ?v ?r)"), &format!("({es} ?b ?q ?w ?r)")),
        );
        push(
            format!("{name}s-into-add"),
            format!("two matmuls of one {row} are computed together and added as they leave them"),
            vec![(Kind::Add, 0, m), (Kind::Add, 1, m)],
            both(Kind::Add, &format!("({ms} ?a ?q ?v)"), &format!("({ms} ?b ?q ?w)")),
        );
        push(
            format!("{name}-into-mul"),
            "a factor per row of the matrix is applied to each row as it leaves the matmul".into(),
            vec![(Kind::Mul, 0, m)],
            vec![(format!("(mul ?c (mat ({ms} ?p ?q ?v)) (weight ?w))"), format!("(mul ?c ({ms} ?p ?q ?v) (weight ?w))"))],
        );
        push(
            format!("expert-{name}-into-sum"),
            "a block computes its rows for all chosen experts and sums them in rank order".into(),
            vec![(Kind::ExpertSum, 0, e)],
            vec![(format!("(expert_sum ?c (mat ({es} ?p ?q ?v ?r)) ?r)"), format!("(expert_sum ?c ({es} ?p ?q ?v ?r) ?r)"))],
        );
    }
    let gate = |m: Kind| {
        let (gate, part) = (format!("({} ?a ?q ?v)", m.symbol()), "(slice ?s ?x)");
        both(Kind::Gelu, &gate, part).remove(0)
    };
    push(
        "gate-and-slice-into-gelu".into(),
        "a gate is joined, as it leaves its matmul, with the part of a row that it scales".into(),
        vec![(Kind::Gelu, 1, Kind::Slice)],
        vec![gate(Kind::Matmul), gate(Kind::Linear)],
    );
    rules
}

/// The rules that are not used: those that a person switched off, and, where matmuls are computed on matrix units, alone in
/// their kernels, those that would join one with something.
pub fn off(o: &Options) -> BTreeSet<String> {
    let joins = |r: &&Rule| {
        let matmul = |k: Kind| matches!(k, Kind::Matmul | Kind::ExpertMatmul);
        r.patterns.iter().any(|(_, joined)| joined.contains(&format!("({} ", Kind::Matmul.symbol())))
            || r.edges.iter().any(|&(consumer, _, producer)| matmul(consumer) || matmul(producer))
    };
    let apart = rules().iter().filter(|r| o.schedule.mma > 0 && joins(r));
    o.rules_off.iter().cloned().chain(apart.map(|r| r.name.clone())).collect()
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
