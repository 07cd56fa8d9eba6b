mod common;
use common::*;
use passes::Options;
use passes::lower::schedule::Schedule;
use runtime::session::Limits;
use std::time::Instant;
#[test]
fn t() {
    let ids = &golden::transcript("b2-long-prose").prompt[..600];
    let scheds = ["1/1/1/4/0/0", "2/2/2/1/0/0", "4/1/2/2/0/0", "2/4/2/1/3/0", "1/4/4/2/2/0", "8/2/4/16/0/0"];
    let mut want: Option<Vec<f32>> = None;
    for sc in scheds {
        for off in [&[][..], &["fuse", "merge-launches"]] {
            let o = Options { schedule: Schedule::parse(sc).unwrap(), ..without(off) };
            let t = Instant::now();
            let p = program(&o);
            let t1 = t.elapsed();
            let mut line = format!("{sc} {off:?} passes {t1:?} kernels {}", p.kernels.len());
            for isa in host_targets() {
                if isa.name() == "x86-64-v4" {
                    continue;
                }
                let t = Instant::now();
                let ks: Vec<_> = p.kernels.iter().collect();
                let code = match codegen::host_object(&ks, isa) {
                    Ok(c) => c,
                    Err(e) => {
                        println!("{sc} {e}");
                        continue;
                    }
                };
                line += &format!(" | {} cg {:.2}", isa.name(), t.elapsed().as_secs_f64());
                let chunks: &[usize] = if sc == "1/1/1/4/0/0" && off.len() != 1 { &[128] } else { &[128] };
                for &c in chunks {
                    let mut s = on_host(&p, &code, threads(1), Limits { context: 640, chunk: c, slack: 0 }, checkpoint());
                    let t = Instant::now();
                    let (l, _) = logits(&mut s, ids, c);
                    line += &format!(" c{c} {:.2}s", t.elapsed().as_secs_f64());
                    match &want {
                        None => want = Some(l),
                        Some(w) => {
                            if let Some(d) = difference(w, &l, 4096) {
                                line += &format!(" DIFF {d}")
                            }
                        }
                    }
                }
            }
            if sc == "1/1/1/4/0/0" {
                let mut s = on_interpreter(&p, Limits { context: 64, chunk: 40, slack: 0 }, checkpoint());
                let t = Instant::now();
                let (l, _) = logits(&mut s, &ids[..40], 17);
                line += &format!(" INTERP {:?}", t.elapsed());
                if let Some(d) = difference(&want.as_ref().unwrap()[..40 * 4096], &l, 4096) {
                    line += &format!(" DIFF {d}")
                }
                let t = Instant::now();
                let l = reference(&through_passes(model(), &o), checkpoint(), &ids[..40], "logits");
                line += &format!(" REF {:?}", t.elapsed());
                if let Some(d) = difference(&want.as_ref().unwrap()[..40 * 4096], &l, 4096) {
                    line += &format!(" DIFF {d}")
                }
                if off.len() == 0 {
                    std::fs::write("/tmp/kernels.txt", kernel_text(&p)).unwrap();
                    std::fs::write("/tmp/model.graph", ir::graph::text::print(&through_passes(model(), &o))).unwrap();
                    std::fs::write("/tmp/model.plan", ir::plan::text::print(&p)).unwrap();
                }
            }
            println!("{line}");
        }
    }
}
