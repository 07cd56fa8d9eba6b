//! Cases that are whole models: prefill in chunks and greedy decode through [`Session`], all logits compared as bits.

use crate::Options;
use crate::report::{Digest, Line, forms};
use crate::run::{Kind, Other, bytes, cpu, others, plan};
use gpu_check::case::Case;
use gpu_check::random::{Random, RandomWeights};
use ir::diag::Result;
use ir::plan::Plan;
use runtime::device::Device;
use runtime::session::{Limits, Session};
use std::path::Path;

/// Tokens of the prompt.
const PROMPT: usize = 150;
/// Tokens decoded after it.
const DECODED: usize = 16;

/// Logits of all positions, and the tokens chosen.
type Outcome = (Vec<u32>, Vec<u32>);

fn open(device: Box<dyn Device>, plan: Plan, code: &[u8], source: &RandomWeights) -> Result<Session> {
    let limits = Limits { slots: 1, context: 256, chunk: 64, slack: 0, outputs: 64 };
    Session::new(device, plan, code, source, limits, &mut |_, _| {})
}

fn decode(s: &mut Session, case: &Case, chunk: usize) -> Result<Outcome> {
    let mut r = Random::new(case.seed, "tokens");
    let prompt: Vec<u32> = (0..PROMPT).map(|_| r.below(case.vocab)).collect();
    let (mut logits, mut chosen) = (vec![], vec![]);
    s.reset();
    let mut keep = |row: &[f32]| logits.extend(row.iter().map(|x| x.to_bits()));
    let mut next = s.run(&prompt, chunk, PROMPT, &mut keep)?;
    for _ in 0..DECODED {
        chosen.push(next);
        // The head knows more tokens than the table of these cases.
        next = s.run(&[next % case.vocab], 1, 1, &mut keep)?;
    }
    Ok((logits, chosen))
}

/// One case.
pub fn case(o: &Options, name: &str, folder: &Path, case: &Case, reference: &str, source: &RandomWeights) -> Result<Vec<Line>> {
    let host = bytes(&folder.join(format!("{reference}.o")))?;
    let want = decode(&mut open(cpu()?, plan(&folder.join("host.plan"))?, &host, source)?, case, 64)?;
    let mut lines = vec![];
    for other in others(o, folder, reference)? {
        if other.kind == Kind::Cuda && o.no_fill {
            continue;
        }
        let mut line = Line::new(name, &other.name);
        let result = compare(o, &other, case, &want, source, &mut line);
        line.close(result);
        lines.push(line);
    }
    Ok(lines)
}

/// One program against the reference's logits and tokens.
fn compare(o: &Options, other: &Other, case: &Case, want: &Outcome, source: &RandomWeights, line: &mut Line) -> Result<()> {
    let (device, p, code) = other.open(o)?;
    (line.kernels, line.launches, line.forms) = (p.kernels.len(), p.launches.len(), forms(&p));
    let mut session = open(device, p, &code, source)?;
    let repeat = if other.kind == Kind::Cuda { o.repeat } else { 1 };
    for r in 0..repeat {
        let chunk = [64, 1, 7, 63, 32][r as usize % 5];
        let got = decode(&mut session, case, chunk)?;
        let positions = PROMPT + DECODED;
        let width = want.0.len() / positions;
        line.buffers += positions as u64;
        line.bytes += 4 * got.0.len() as u64;
        let wrong = (0..positions).filter(|&i| got.0[i * width..][..width] != want.0[i * width..][..width]).count();
        if wrong > 0 || got.1 != want.1 {
            line.mismatches += wrong.max(1) as u64;
            println!("MISMATCH {} {} repeat {r} chunks of {chunk}: logits of {wrong} positions differ", line.case, line.program);
        }
        if r == 0 {
            let mut d = Digest::new();
            got.0.iter().for_each(|w| d.add(&w.to_le_bytes()));
            line.digest = d.0;
        }
    }
    Ok(())
}
