//! Two traces: the first value whose inputs agree and which does not. Values are matched by name, tokens by turn and position,
//! so programs with other fusions, chunks and devices compare; what only one has is skipped and counted.

use super::Verdict;
use super::elements::{Elements, compare};
use crate::trace::{NodeEntry, Row, Trace, ValueEntry, key};
use ir::diag::{Diagnostic, Result};
use models::Tensor;
use models::checkpoint::TensorFile;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// A trace with a name for people, and the file of its values, if there is one.
pub struct Side<'a> {
    /// Its file.
    pub name: String,
    /// What it holds.
    pub trace: &'a Trace,
    /// Stored values.
    pub values: Option<&'a TensorFile>,
}

/// What wrote a value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Writer {
    /// Plan.
    pub phase: String,
    /// Launch.
    pub launch: String,
    /// Kernel.
    pub kernel: String,
    /// How it is spread.
    pub schedule: String,
    /// Step of the device.
    pub step: u64,
    /// What is computed from the inputs: operations with their orders, by name.
    pub computes: BTreeMap<String, String>,
}

/// The first difference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Name of the value; none where the tokens differ before any value does.
    pub value: Option<String>,
    /// Its type.
    #[serde(rename = "type")]
    pub ty: String,
    /// Turns before it.
    pub turn: u64,
    /// Position.
    pub position: u64,
    /// Tokens of both.
    pub token: [u32; 2],
    /// How the vocabulary writes them.
    pub text: [Option<String>; 2],
    /// Rows of A before it that B has too.
    pub step: usize,
    /// Values that it is computed from, whose digests agree.
    pub inputs: Vec<String>,
    /// What wrote it in A and in B.
    pub writers: Option<[Writer; 2]>,
    /// Both compute it by the same operations in the same orders.
    pub same_order: Option<bool>,
    /// Its elements, where both traces have stored them.
    pub elements: Option<Elements>,
    /// Why they are not compared, where they cannot be.
    pub no_elements: Option<String>,
    /// Other values of the token that differ.
    pub others: usize,
    /// Values of the token that both have.
    pub of: usize,
    /// Do its logits differ? None if not both have them.
    pub logits: Option<bool>,
    /// Position of the first token that differs, and both tokens.
    pub next_token: Option<(u64, [u32; 2])>,
}

/// What was compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Counts {
    /// Tokens of both.
    pub tokens: usize,
    /// Tokens only in A, and only in B.
    pub only_tokens: [usize; 2],
    /// Digests of both that were compared.
    pub digests: usize,
    /// Values of both.
    pub values: usize,
    /// Values only in A, and only in B.
    pub only_values: [usize; 2],
}

type Key = (u64, u64);

fn key_of(r: &Row) -> Key {
    (r.turn, r.position)
}

/// Values that two plans have in common: numbers in A and B, in the order of A.
fn common(a: &[ValueEntry], b: &[ValueEntry]) -> Vec<(usize, usize)> {
    let names: BTreeMap<&str, usize> = b.iter().enumerate().map(|(i, v)| (v.name.as_str(), i)).collect();
    a.iter().enumerate().filter_map(|(i, v)| Some((i, *names.get(v.name.as_str())?))).collect()
}

/// Values by plan of A and plan of B.
type Common = BTreeMap<(usize, usize), Vec<(usize, usize)>>;

/// Compares.
pub fn diff(a: &Side, b: &Side) -> Result<Verdict> {
    let mut c = Counts::default();
    let theirs: BTreeMap<Key, &Row> = b.trace.rows.iter().map(|r| (key_of(r), r)).collect();
    let both: Vec<(&Row, &Row)> = a.trace.rows.iter().filter_map(|r| Some((r, *theirs.get(&key_of(r))?))).collect();
    c.tokens = both.len();
    let distinct = |t: &Trace| t.rows.iter().map(key_of).collect::<BTreeSet<_>>().len();
    c.only_tokens = [distinct(a.trace).saturating_sub(both.len()), theirs.len().saturating_sub(both.len())];
    let names =
        |t: &Trace| -> BTreeSet<String> { t.header.plans.iter().flat_map(|p| &p.values).map(|v| v.name.clone()).collect() };
    let (of_a, of_b) = (names(a.trace), names(b.trace));
    c.values = of_a.intersection(&of_b).count();
    c.only_values = [of_a.len() - c.values, of_b.len() - c.values];
    if c.tokens == 0 || c.values == 0 {
        let what = if c.tokens == 0 { "no token" } else { "no value" };
        return Err(Diagnostic::new("E0806", format!("the traces have {what} in common"))
            .at(format!("{} and {}", a.name, b.name))
            .hint("they are of different prompts or models, or one has no row"));
    }
    let mut known = Common::new();
    let mut found: Option<Difference> = None;
    for (n, (x, y)) in both.iter().enumerate() {
        if x.token != y.token {
            let next = Some((x.position, [x.token, y.token]));
            match &mut found {
                Some(d) => d.next_token = next,
                None => found = Some(Difference { next_token: next, ..blank(n, x, y) }),
            }
            break;
        }
        if found.is_some() {
            continue;
        }
        let of = |t: &Trace, plan: usize| t.header.plans.get(plan).map_or(vec![], |p| p.values.clone());
        let pairs = known.entry((x.plan, y.plan)).or_insert_with(|| common(&of(a.trace, x.plan), &of(b.trace, y.plan)));
        let known = pairs.iter().filter_map(|&(i, j)| Some((i, j, x.digests[i]?, y.digests[j]?)));
        let (mut differing, mut compared) = (vec![], 0);
        for (i, j, p, q) in known {
            compared += 1;
            if p != q {
                differing.push((i, j));
            }
        }
        c.digests += compared;
        if let Some(&(i, j)) = differing.first() {
            let pairs = pairs.clone();
            let mut d = describe(a, b, (n, x, y), (i, j), &pairs);
            (d.others, d.of) = (differing.len() - 1, compared);
            let is_logits = |&(i, _): &(usize, usize)| a.trace.header.plans[x.plan].values[i].name == "logits";
            d.logits = pairs.iter().find(|p| is_logits(p)).and_then(|&(i, j)| Some(x.digests[i]? != y.digests[j]?));
            found = Some(d);
        }
    }
    let h = [&a.trace.header, &b.trace.header];
    let json = serde_json::json!({
        "equal": found.is_none(),
        "a": {"file": a.name, "target": h[0].target, "device": h[0].device, "tokens": a.trace.rows.len(), "cut": a.trace.cut},
        "b": {"file": b.name, "target": h[1].target, "device": h[1].device, "tokens": b.trace.rows.len(), "cut": b.trace.cut},
        "same_model": h[0].model == h[1].model,
        "same_numerics": h[0].numerics == h[1].numerics,
        "same_program": h[0].program == h[1].program,
        "compared": c,
        "difference": found,
    });
    Ok(Verdict { equal: found.is_none(), text: text(a, b, &c, found.as_ref()), json })
}

fn blank(step: usize, x: &Row, y: &Row) -> Difference {
    Difference {
        value: None,
        ty: String::new(),
        turn: x.turn,
        position: x.position,
        token: [x.token, y.token],
        text: [x.text.clone(), y.text.clone()],
        step,
        inputs: vec![],
        writers: None,
        same_order: None,
        elements: None,
        no_elements: None,
        others: 0,
        of: 0,
        logits: None,
        next_token: None,
    }
}

/// What is computed of a value from others that stand in both traces: operations by name, and those others.
fn region(
    nodes: &BTreeMap<String, NodeEntry>,
    from: &str,
    stop: &BTreeSet<&str>,
) -> (BTreeMap<String, String>, BTreeSet<String>) {
    let (mut ops, mut inputs, mut todo) = (BTreeMap::new(), BTreeSet::new(), vec![from]);
    while let Some(name) = todo.pop() {
        let Some(node) = nodes.get(name) else { continue };
        if ops.insert(name.to_string(), node.op.clone()).is_some() {
            continue;
        }
        for i in &node.inputs {
            if stop.contains(i.as_str()) && i != from {
                inputs.insert(i.clone());
            } else {
                todo.push(i);
            }
        }
    }
    (ops, inputs)
}

/// The tensor of a row of a value.
fn stored<'a>(s: &Side<'a>, value: &str, name: &str) -> Result<Tensor<'a>, String> {
    let file = s.values.ok_or(format!("{} has no stored values", s.name))?;
    file.tensor(name).ok_or(format!("{} stores no {value}", s.name))
}

fn describe(a: &Side, b: &Side, (n, x, y): (usize, &Row, &Row), (i, j): (usize, usize), pairs: &[(usize, usize)]) -> Difference {
    let side = |s: &Side, row: &Row, number: usize, stop: &BTreeSet<&str>| {
        let plan = &s.trace.header.plans[row.plan];
        let v = &plan.values[number];
        let (computes, inputs) = region(&s.trace.header.nodes, &v.node, stop);
        let writer = Writer {
            phase: plan.phase.clone(),
            launch: v.launch.clone(),
            kernel: v.kernel.clone(),
            schedule: v.schedule.clone(),
            step: row.step,
            computes,
        };
        (writer, inputs)
    };
    let values = &a.trace.header.plans[x.plan].values;
    let stop: BTreeSet<&str> = pairs.iter().map(|&(i, _)| values[i].node.as_str()).collect();
    let ((wa, inputs), (wb, _)) = (side(a, x, i, &stop), side(b, y, j, &stop));
    let v = &values[i];
    let name = key(&v.name, x.turn, x.position);
    let elements = (|| {
        let (p, q) = (stored(a, &v.name, &name)?, stored(b, &v.name, &name)?);
        compare(&p, &q).map_err(|d| d.message)
    })();
    let same = wa.computes == wb.computes;
    Difference {
        value: Some(v.name.clone()),
        ty: v.ty.clone(),
        inputs: inputs.into_iter().collect(),
        same_order: Some(same),
        writers: Some([wa, wb]),
        no_elements: elements.as_ref().err().cloned(),
        elements: elements.ok(),
        ..blank(n, x, y)
    }
}

fn shown(text: &Option<String>) -> String {
    text.as_ref().map_or(String::new(), |t| format!(" {t:?}"))
}

fn text(a: &Side, b: &Side, c: &Counts, found: Option<&Difference>) -> String {
    let mut s = String::new();
    for (letter, side) in [("A", a), ("B", b)] {
        let h = &side.trace.header;
        let cut = if side.trace.cut { ", cut off in a line" } else { "" };
        _ = writeln!(s, "{letter} {}: {} on {}, {} tokens{cut}", side.name, h.target, h.device, side.trace.rows.len());
    }
    if a.trace.header.model != b.trace.header.model {
        s.push_str("the models differ\n");
    }
    if a.trace.header.numerics != b.trace.header.numerics {
        s.push_str("the numerics differ: operations or orders of the graphs\n");
    }
    _ = writeln!(s, "in both: {} tokens, {} values; {} digests compared", c.tokens, c.values, c.digests);
    for (letter, [values, tokens]) in ["A", "B"].into_iter().zip([0, 1].map(|i| [c.only_values[i], c.only_tokens[i]])) {
        if values + tokens > 0 {
            _ = writeln!(s, "only in {letter}, skipped: {tokens} tokens, {values} values");
        }
    }
    let Some(d) = found else {
        s.push_str("equal\n");
        return s;
    };
    let place = format!("turn {}, position {} (step {})", d.turn, d.position, d.step);
    let (Some(value), Some(writers)) = (&d.value, &d.writers) else {
        let [x, y] = [0, 1].map(|i| format!("{}{}", d.token[i], shown(&d.text[i])));
        _ = writeln!(s, "the tokens differ at {place}: {x} and {y}; no value in front of them does");
        return s;
    };
    _ = writeln!(s, "differs: {value} ({}) at {place}, token {}{}", d.ty, d.token[0], shown(&d.text[0]));
    for (letter, w) in ["A", "B"].into_iter().zip(writers) {
        _ = writeln!(s, "  {letter}        kernel {} of launch {:?} ({}), {}", w.kernel, w.launch, w.phase, w.schedule);
    }
    let inputs = if d.inputs.is_empty() { "none that both store".into() } else { d.inputs.join(", ") + ": equal" };
    _ = writeln!(s, "  inputs   {inputs}");
    let [ca, cb] = [&writers[0].computes, &writers[1].computes];
    if d.same_order == Some(true) {
        for (name, op) in ca.iter().filter(|(_, op)| !op.starts_with("weight ")) {
            _ = writeln!(s, "  computes {name} = {op}");
        }
        s.push_str("  verdict  same order, other bits: a race, memory that nothing wrote, hardware, or code generation\n");
    } else {
        for (letter, mine, other) in [("A", ca, cb), ("B", cb, ca)] {
            for (name, op) in mine.iter().filter(|(name, op)| other.get(*name) != Some(*op)) {
                _ = writeln!(s, "  only {letter}   {name} = {op}");
            }
        }
        s.push_str("  verdict  another order: the two compute this value by other operations, or sum in another order\n");
    }
    match (&d.elements, &d.no_elements) {
        (Some(e), _) => e.lines().iter().for_each(|l| _ = writeln!(s, "  elements {l}")),
        (None, why) => {
            let why = why.clone().unwrap_or_default();
            _ = writeln!(s, "  elements unknown: {why} (`--trace-values {value:?}` stores them)");
        }
    }
    let logits = match d.logits {
        Some(true) => "; so do its logits",
        Some(false) => "; its logits are equal",
        None => "",
    };
    let next = match d.next_token {
        Some((at, [x, y])) => format!("; the token at position {at} is {x} in A and {y} in B"),
        None => "; no chosen token differs".into(),
    };
    _ = writeln!(s, "  after    {} of {} other values of this token differ{logits}{next}", d.others, d.of - 1);
    s
}
