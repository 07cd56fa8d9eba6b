//! Graph operations, with their attributes and their exact meaning (executed by [`super::interp`]).

use crate::order::{AttentionOrder, ReductionOrder};

/// How the embedding row enters the residual stream (SPEC section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EmbedMode {
    /// f32 row times f32 sqrt(H): nothing is rounded to the checkpoint's type.
    Exact,
    /// f32 row times sqrt(H) rounded to the checkpoint's type: the model as trained.
    Factor,
    /// row, factor and product rounded to bf16, as the peers do.
    Bf16,
}

/// Rotary frequencies: pair `j` of `pairs` turns by `position * theta^(-2j/dim) / factor`; pairs from `rotated` on by 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeParams {
    /// Head size; pair `j` is elements `j` and `j + dim/2`.
    pub dim: u32,
    /// Pairs that turn.
    pub rotated: u32,
    /// Base.
    pub theta: f64,
    /// Divides all frequencies.
    pub factor: f64,
}

impl RopeParams {
    /// Frequency of pair `j` as the nearest float and the nearest float to what is left.
    pub fn frequency(&self, j: u32) -> (f32, f32) {
        if j >= self.rotated {
            return (0.0, 0.0);
        }
        let f = libm::pow(self.theta, -2.0 * f64::from(j) / f64::from(self.dim)) / self.factor;
        let hi = f as f32;
        (hi, (f - f64::from(hi)) as f32)
    }
}

/// An operation. Operands are named in the order in which the node holds them.
/// An `order` of `None` has not been pinned yet, which only `--determinism off` may leave so.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Ids of the chunk's tokens.
    Tokens,
    /// A tensor of the checkpoint (the node's name is the tensor's, without prefix and `.weight`).
    Weight,
    /// The key/value cache of one layer, as it is before the step.
    Kv {
        /// Layer number, names the cache.
        layer: u32,
        /// Key heads.
        heads: u32,
        /// Head size.
        dim: u32,
        /// Keys a query sees, itself included; 0 for all.
        window: u32,
    },
    /// (table, ids): row of the table times the factor.
    Embed {
        /// Rounding.
        mode: EmbedMode,
        /// The factor, already rounded as `mode` says.
        factor: f32,
    },
    /// (x [, w]): over each `dim` consecutive elements `(x * rsqrt(fma(Σx², 1/dim, eps))) * w`.
    RmsNorm {
        /// Elements that are normed together.
        dim: u32,
        /// Added to the mean square.
        eps: f32,
        /// Order of Σx², a chain of fma.
        order: Option<ReductionOrder>,
    },
    /// (x, w): `x Wᵀ`. With plain weights each sum is taken in `order` over units of [`LINEAR_UNIT`](crate::order::LINEAR_UNIT) elements (the last
    /// may be shorter), a chain of `fma(w, x, acc)` in f32 in ascending order within a unit. With affine weights it stands for
    /// the exact integers that `quant-lower` makes of it.
    Linear {
        /// Order over units, or over groups of affine weights.
        order: Option<ReductionOrder>,
    },
    /// (x, w, route): for each rank the chosen expert's `x Wᵀ`, as `Linear`; x is one row, or one row per rank.
    ExpertLinear {
        /// Order over units, or over groups of affine weights.
        order: Option<ReductionOrder>,
    },
    /// (x): 24-bit fixed point per group.
    Quantize {
        /// Elements of a group.
        group: u32,
    },
    /// (xq, w): exact integer sums per group, `acc = fma(2^e, fma(s, P, β·S), acc)` over groups in `order`.
    QLinear {
        /// Order over groups.
        order: Option<ReductionOrder>,
    },
    /// (xq, w, route): as `QLinear`, with the expert of each rank.
    QExpertLinear {
        /// Order over groups.
        order: Option<ReductionOrder>,
    },
    /// (a, b): sum.
    Add,
    /// (a, b): product; `b` may be a weight vector as long as a row, or one number.
    Mul,
    /// (x): product with a constant.
    MulConst {
        /// The constant.
        c: f32,
    },
    /// (x): nearest bf16 values, ties to even. What other programs do between their kernels; a float64 judge leaves it out.
    RoundBf16,
    /// (gate, up): `gelu_tanh(gate) * up`.
    GeluMul,
    /// (x): rotary embedding of each head by the token's position.
    Rope(RopeParams),
    /// (kv, k, v): the cache with the chunk's keys and values written at their positions.
    KvWrite,
    /// (q, kv): softmax attention of each query head; scale 1.
    Attention {
        /// Query heads.
        heads: u32,
        /// Order over keys and elements.
        order: Option<AttentionOrder>,
    },
    /// (logits, per-expert scale): the `k` highest logits, ties to the lower index; weights are the softmax over them
    /// (sum in rank order) times the expert's scale. A NaN counts as +inf, and where +inf is chosen all weights are NaN.
    Route {
        /// Experts chosen.
        k: u32,
    },
    /// (y, route): Σ over ranks of weight times row, a chain of fma in rank order.
    ExpertSum,
    /// (x): the rows whose logits are asked for.
    Select,
    /// (x): elements `start..start + len` of each row.
    Slice {
        /// First element.
        start: u32,
        /// Elements.
        len: u32,
    },
    /// (x): `cap * tanh(x / cap)`, with the quotient as product by the nearest float to 1/cap; NaN where x is not finite.
    Softcap {
        /// The cap.
        cap: f32,
    },
    /// (logits): index of the greatest, ties to the lowest; NaN anywhere gives -1.
    Argmax,
}

impl Op {
    /// The name in text.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Tokens => "tokens",
            Op::Weight => "weight",
            Op::Kv { .. } => "kv",
            Op::Embed { .. } => "embed",
            Op::RmsNorm { .. } => "rmsnorm",
            Op::Linear { .. } => "linear",
            Op::ExpertLinear { .. } => "expert_linear",
            Op::Quantize { .. } => "quantize",
            Op::QLinear { .. } => "qlinear",
            Op::QExpertLinear { .. } => "qexpert_linear",
            Op::Add => "add",
            Op::Mul => "mul",
            Op::MulConst { .. } => "mul_const",
            Op::RoundBf16 => "round_bf16",
            Op::GeluMul => "gelu_mul",
            Op::Rope(_) => "rope",
            Op::KvWrite => "kv_write",
            Op::Attention { .. } => "attention",
            Op::Route { .. } => "route",
            Op::ExpertSum => "expert_sum",
            Op::Select => "select",
            Op::Slice { .. } => "slice",
            Op::Softcap { .. } => "softcap",
            Op::Argmax => "argmax",
        }
    }

    /// Does it compute something (rather than name an input)?
    pub fn computes(&self) -> bool {
        !matches!(self, Op::Tokens | Op::Weight | Op::Kv { .. })
    }
}
