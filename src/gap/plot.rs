//! The gap of every token as a picture: an SVG of its own, the same bytes for the same report.

use super::Token;
use super::report::{Near, Report};
use std::fmt::Write;

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 56.0;
const HEIGHT: f64 = 340.0;
/// A line of the list below the picture.
const LINE: f64 = 38.0;

const STYLE: &str = "text{font:13px system-ui,'DejaVu Sans',sans-serif;fill:#24292f}.s{font-size:11px;fill:#656d76}\
.m{font-family:ui-monospace,'DejaVu Sans Mono',monospace;font-size:12px}.h{font-size:16px;font-weight:600}\
.g{stroke:#d8dee4;stroke-width:1}.t{stroke:#afb8c1;stroke-dasharray:2 3}.e{stroke:#1a7f37;stroke-dasharray:6 4}\
.p{fill:#57606a;fill-opacity:.55}.n{fill:#cf222e}.f{fill:none;stroke:#bf8700;stroke-width:1.5}.w{fill:#fff;font-weight:600;font-size:11px}";

/// Text inside of an element.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The picture.
pub fn svg(r: &Report) -> String {
    let tokens: Vec<&Token> = r.tokens().collect();
    let gaps = || tokens.iter().map(|t| t.gap()).filter(|g| g.is_finite() && *g > 0.0);
    let error = r.error();
    let least = gaps().fold(f64::INFINITY, f64::min).min(if error > 0.0 { error } else { f64::INFINITY });
    let (low, high) = (decade(least, f64::floor).min(-2), decade(gaps().fold(1.0, f64::max), f64::ceil).max(1));
    let across = (WIDTH - LEFT - RIGHT) / tokens.len().max(1) as f64;
    let x = |i: usize| LEFT + across * (i as f64 + 0.5);
    let y = |gap: f64| {
        // A tie lies on the lower edge.
        let at = if gap > 0.0 { gap.log10().max(f64::from(low)) } else { f64::from(low) };
        TOP + HEIGHT * (f64::from(high) - at) / f64::from(high - low)
    };
    let list = TOP + HEIGHT + 58.0;
    let height = list + LINE * r.near.len() as f64 + 12.0;
    let mut o = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\">\n\
         <title>Gap between the two best logits</title><style>{STYLE}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text class=\"h\" x=\"{LEFT}\" y=\"26\">Gap between the two best logits of {} generated tokens</text>\n",
        tokens.len()
    );
    for e in low..=high {
        let at = y(10f64.powi(e));
        let _ = writeln!(o, "<path class=\"g\" d=\"M{LEFT} {at:.1}H{:.1}\"/>", WIDTH - RIGHT);
        let label = if (-3..=2).contains(&e) { format!("{}", 10f64.powi(e)) } else { format!("1e{e}") };
        let _ = writeln!(o, "<text class=\"s\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", LEFT - 8.0, at + 4.0);
    }
    if error > 0.0 {
        let at = y(error);
        let _ = writeln!(o, "<path class=\"e\" d=\"M{LEFT} {at:.1}H{:.1}\"/>", WIDTH - RIGHT);
        let _ = writeln!(
            o,
            "<text class=\"s\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">largest error of a logit against float64: {error:.1e}</text>",
            WIDTH - RIGHT,
            at - 5.0
        );
    }
    for (i, t) in tokens.iter().enumerate() {
        if t.index == 0 && r.turns.len() > 1 {
            let _ = writeln!(o, "<path class=\"t\" d=\"M{:.1} {TOP}V{:.1}\"/>", x(i) - across / 2.0, TOP + HEIGHT);
            let _ = writeln!(o, "<text class=\"s\" x=\"{:.1}\" y=\"{:.1}\">turn {}</text>", x(i), TOP - 6.0, t.turn + 1);
        }
        let _ = writeln!(o, "<circle class=\"p\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\"/>", x(i), y(t.gap()));
        // Where another judge would choose otherwise.
        if t.judged.iter().any(|s| s.best != t.chosen()) {
            let _ = writeln!(o, "<circle class=\"f\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"6\"/>", x(i), y(t.gap()));
        }
    }
    for every in (0..tokens.len()).step_by(step(tokens.len())) {
        let _ = writeln!(
            o,
            "<text class=\"s\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{every}</text>",
            x(every),
            TOP + HEIGHT + 18.0
        );
    }
    let rings = if r.judges.len() > 1 { "; rings: another of the models would choose another token" } else { "" };
    let _ = writeln!(o, "<text class=\"s\" x=\"{LEFT}\" y=\"{:.1}\">generated token{rings}</text>", TOP + HEIGHT + 36.0);
    for (k, near) in r.near.iter().enumerate() {
        let Some(i) = tokens.iter().position(|t| (t.turn, t.index) == near.at) else { continue };
        let (at, t) = (list + LINE * k as f64, tokens[i]);
        badge(&mut o, x(i), y(t.gap()), k + 1);
        badge(&mut o, LEFT - 24.0, at + 8.0, k + 1);
        let words = format!("{}  →  {}  or  {}", r.context(near), r.quoted(&[t.chosen()]), r.quoted(&[t.second()]));
        let _ = writeln!(o, "<text class=\"m\" x=\"{LEFT}\" y=\"{:.1}\">{}</text>", at + 12.0, escape(&words));
        let _ = writeln!(o, "<text class=\"s\" x=\"{LEFT}\" y=\"{:.1}\">{}</text>", at + 27.0, escape(&facts(t, near)));
    }
    o.push_str("</svg>\n");
    o
}

fn badge(o: &mut String, x: f64, y: f64, number: usize) {
    let _ = writeln!(o, "<circle class=\"n\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"8\"/>");
    let _ = writeln!(o, "<text class=\"w\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{number}</text>", y + 4.0);
}

fn facts(t: &Token, near: &Near) -> String {
    let noise = match super::flip::median(&near.flips) {
        Some(r) if r > 0.0 => format!("another token wins from noise of {r:.1e} on"),
        Some(_) => "float64 chooses another token".into(),
        None if near.flips.is_empty() => return format!("turn {} token {}, gap {:.6}", t.turn + 1, t.index, t.gap()),
        None => "no noise makes another token win".into(),
    };
    format!("turn {} token {}, gap {:.6}; {noise}", t.turn + 1, t.index, t.gap())
}

/// A power of ten at or beyond a gap.
fn decade(gap: f64, round: fn(f64) -> f64) -> i32 {
    if gap.is_finite() && gap > 0.0 { round(gap.log10()).clamp(-12.0, 4.0) as i32 } else { 0 }
}

/// Tokens between labels.
fn step(n: usize) -> usize {
    [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].into_iter().find(|s| n / s <= 16).unwrap_or(10_000)
}
