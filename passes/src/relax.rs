//! What `--determinism off` leaves to the machine: the control of experiments, so that the promise of the other levels can be seen
//! to cost nothing and to be worth something. Each way has a pass of its own, whose decisions are numbered, so that
//! `isobit bisect --passes` names what makes a difference. None of them runs at a level that promises anything.

use crate::options::{Level, Options};
use crate::pass::{Effect, Module, Pass, PassCx};
use ir::diag::Result;
use ir::graph::op::Op;

/// Name of [`Approximate`].
pub const APPROXIMATE: &str = "approximate";
/// Name of [`UnorderedSums`].
pub const UNORDERED: &str = "unordered-sums";
/// Name of [`Contract`].
pub const CONTRACT: &str = "contract";

fn forbidden(options: &Options, why: &'static str) -> Option<&'static str> {
    (options.determinism > Level::Off).then_some(why)
}

/// Exponentials and roots of the hardware.
pub struct Approximate;

impl Pass for Approximate {
    fn name(&self) -> &'static str {
        APPROXIMATE
    }
    fn about(&self) -> &'static str {
        "At `--determinism off`, on GPUs: softmax and norms use the hardware's `ex2.approx` and `rsqrt.approx`, whose bits differ \
         between generations, in place of polynomials of exactly specified operations"
    }
    fn effect(&self) -> Effect {
        Effect::Rounding
    }
    fn forbidden(&self, options: &Options) -> Option<&'static str> {
        forbidden(options, "machines differ in the functions that they approximate")
    }

    fn run(&self, m: &mut Module, cx: &mut PassCx<'_>) -> Result<bool> {
        // Processors have no such functions.
        if cx.options.schedule.row_warps == 1 {
            return Ok(false);
        }
        for id in m.graph.topo() {
            let n = m.graph.node(id);
            let has = matches!(n.op, Op::RmsNorm { .. } | Op::Attention { .. } | Op::Route { .. });
            if has && cx.decide(format!("approximate {}", n.name)) {
                cx.stat("values", 1);
                m.relaxed.approximate.insert(n.name.clone());
            }
        }
        Ok(false)
    }
}

/// Float atomics.
pub struct UnorderedSums;

impl Pass for UnorderedSums {
    fn name(&self) -> &'static str {
        UNORDERED
    }
    fn about(&self) -> &'static str {
        "At `--determinism off`: the rows of the chosen experts are added to memory by float atomics, one block for each expert, in \
         the order in which blocks arrive. So runs of one program differ"
    }
    fn effect(&self) -> Effect {
        Effect::Rounding
    }
    fn forbidden(&self, options: &Options) -> Option<&'static str> {
        forbidden(options, "a sum in the order of arrival is another one in each run")
    }

    fn run(&self, m: &mut Module, cx: &mut PassCx<'_>) -> Result<bool> {
        for id in m.graph.topo() {
            let n = m.graph.node(id);
            // A sum of two has no order; that of three can differ only in which two come first.
            let sum = matches!(n.op, Op::ExpertSum) && m.graph.node(n.inputs[1]).ty.width() >= 4;
            if sum && cx.decide(format!("add in order of arrival {}", n.name)) {
                cx.stat("sums", 1);
                m.relaxed.unordered.insert(n.name.clone());
            }
        }
        Ok(false)
    }
}

/// Contraction of products and sums.
pub struct Contract;

impl Pass for Contract {
    fn name(&self) -> &'static str {
        CONTRACT
    }
    fn about(&self) -> &'static str {
        "At `--determinism off`: code generation and assembler may round a product and the sum that follows once instead of \
         twice, where they like. Targets and versions differ in what they like"
    }
    fn effect(&self) -> Effect {
        Effect::Rounding
    }
    fn forbidden(&self, options: &Options) -> Option<&'static str> {
        forbidden(options, "code generators differ in what they contract")
    }

    fn run(&self, m: &mut Module, cx: &mut PassCx<'_>) -> Result<bool> {
        let Some(plan) = &mut m.plan else { return Ok(false) };
        let mut changed = false;
        for k in &mut plan.kernels {
            if cx.decide(format!("contract {}", k.name)) {
                cx.stat("kernels", 1);
                (k.contract, changed) = (true, true);
            }
        }
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::Manager;
    use crate::options::RELAXED;
    use crate::pass::run_alone;
    use crate::pipeline::Pipeline;
    use crate::testing::moe_model;

    #[test]
    fn a_level_that_promises_something_refuses_them() {
        let check = |text: &str| Manager::default().check(&Pipeline::full(), &Options::parse(text).unwrap());
        for pass in RELAXED {
            for level in ["run", "portable"] {
                assert_eq!(check(&format!("determinism={level} switch.{pass}=on")).unwrap_err().code, "E0745");
                assert!(!Options::parse(&format!("determinism={level}")).unwrap().is_on(pass));
            }
            assert!(check(&format!("determinism=off switch.{pass}=on")).is_ok());
            assert!(Options::parse("determinism=off").unwrap().is_on(pass));
        }
    }

    #[test]
    fn sums_of_few_terms_and_processors_are_left_alone() {
        let mut m = Module::new(moe_model(1));
        let o = Options { determinism: Level::Off, ..Options::default() };
        run_alone(&Approximate, &mut m, &o).unwrap();
        assert!(m.relaxed.approximate.is_empty());
        let gpu = Options { schedule: crate::lower::schedule::Schedule::GPU, ..o.clone() };
        assert!(run_alone(&Approximate, &mut m, &gpu).unwrap().1["values"] > 2);
        let terms = |m: &Module| {
            let sum = m.graph.ids().find(|&id| matches!(m.graph.node(id).op, Op::ExpertSum)).unwrap();
            m.graph.node(m.graph.node(sum).inputs[1]).ty.width()
        };
        run_alone(&UnorderedSums, &mut m, &o).unwrap();
        assert_eq!(m.relaxed.unordered.is_empty(), terms(&m) < 4);
    }
}
