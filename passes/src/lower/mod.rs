//! Lowering: stages of the graph become kernels and a launch plan. Read top to bottom: [`lower`] walks the launches,
//! [`emit`] sends each stage to the generator of its family, equal kernels are merged, parameters are bound to buffers.

mod arrival;
mod attention;
mod cx;
mod dispatch;
mod heads;
mod matmul;
mod mma;
mod products;
mod route;
mod rows;
pub mod schedule;
pub mod shared;
mod stage;
mod units;

use crate::pass::Relaxed;
pub use cx::is_row_op;
use cx::{ArgKey, Kx, Written};
use ir::diag::{Diagnostic, Result};
use ir::graph::op::Op;
use ir::graph::{Graph, NodeId, Rows, Stage};
use ir::kernel::{IntOp, Kernel};
use ir::layout::MatrixLayout;
use ir::math::Arith;
use ir::order::ReductionOrder;
use ir::plan::{Arg, Buffer, BufferKind, DIGEST, Launch, Pack, PackedWeight, Plan};
use schedule::Schedule;
use std::collections::BTreeMap;

/// Lowers a graph whose quantized matmuls are exact and whose orders are pinned.
pub fn lower(g: &Graph, s: &Schedule) -> Result<Plan> {
    lower_keeping(g, s, &|_| false, false, &Relaxed::default())
}

/// The same; what `keep` names is stored wherever a stage says so. `traced`: kernels sum up digests of what they store.
/// `relaxed`: what is left to the machine.
pub fn lower_keeping(g: &Graph, s: &Schedule, keep: &dyn Fn(&str) -> bool, traced: bool, relaxed: &Relaxed) -> Result<Plan> {
    s.check().map_err(|m| Diagnostic::new("E0601", m))?;
    let stages = attention::quantized(g, s, g.stages_or_default(), keep);
    let mut plan = Plan::default();
    let mut known: BTreeMap<String, u32> = BTreeMap::new();
    for mut launch in g.launches_or_default() {
        launch.retain(|&i| !stages[i as usize].nodes.is_empty());
        if launch.is_empty() {
            continue;
        }
        // What is added in order of arrival has launches of its own.
        for &i in &launch {
            if let Some(id) = arrival::sum(g, &stages[i as usize], relaxed) {
                for (name, kernel, args, grid_x) in arrival::launches(g, s, id) {
                    let kernel = intern(&mut plan, &mut known, kernel, &format!("k_sum_{name}"));
                    let args = args.into_iter().map(|a| bind(g, &mut plan, a)).collect::<Result<Vec<_>>>()?;
                    let (name, rows) = (format!("{}.{name}", g.node(id).name), g.node(id).ty.rows);
                    plan.launches.push(Launch { name, kernel, args, grid_x, rows, tokens: 1 });
                }
            }
        }
        launch.retain(|&i| arrival::sum(g, &stages[i as usize], relaxed).is_none());
        if launch.is_empty() {
            continue;
        }
        let parts = parts(g, s, &stages, &launch)?;
        let name = parts.iter().map(|p| p.stage.name.as_str()).collect::<Vec<_>>().join("+");
        let rows = parts[0].rows;
        if parts.iter().any(|p| p.rows != rows) {
            return Err(Diagnostic::new("E0602", "stages of one launch differ in their rows").at(name));
        }
        for route in parts.iter().filter_map(stage::Part::lists) {
            add_lists(g, s, &mut plan, &mut known, route)?;
        }
        // What one launch leaves in parts is joined by another.
        let join = if let [part] = &parts[..] { part.join(s) } else { None };
        let suffix = if join.is_some() { "parts" } else { "" };
        for (parts, suffix) in [(parts, suffix)].into_iter().chain(join.map(|j| (vec![j], ""))) {
            let tile = tile(g, s, &parts);
            let (kernel, args) = emit(g, s, &parts, tile, traced, relaxed)?;
            let of = |name: String, dot| if suffix.is_empty() { name } else { format!("{name}{dot}{suffix}") };
            let kernel = intern(&mut plan, &mut known, kernel, &of(kernel_name(&parts), '_'));
            let args = args.into_iter().map(|a| bind(g, &mut plan, a)).collect::<Result<Vec<_>>>()?;
            let grid_x = parts.iter().map(|p| p.grid_x).sum();
            plan.launches.push(Launch { name: of(name.clone(), '.'), kernel, args, grid_x, rows, tokens: tile });
        }
    }
    for &o in &g.outputs {
        if !plan.buffers.iter().any(|b| b.name == g.node(o).name) {
            return Err(Diagnostic::new("E0603", "an output is not stored by any stage").at(&g.node(o).name));
        }
    }
    Ok(plan)
}

/// Adds the launch that makes a route's lists, once.
fn add_lists(g: &Graph, s: &Schedule, plan: &mut Plan, known: &mut BTreeMap<String, u32>, route: NodeId) -> Result<()> {
    let name = lists_name(g, route);
    if plan.launches.iter().any(|l| l.name == name) {
        return Ok(());
    }
    let (kernel, args, experts) = dispatch::lists(g, s, route);
    let kernel = intern(plan, known, kernel, "k_lists");
    let args = args.into_iter().map(|a| bind(g, plan, a)).collect::<Result<Vec<_>>>()?;
    plan.launches.push(Launch { name, kernel, args, grid_x: experts, rows: Rows::Tokens, tokens: dispatch::ROWS });
    Ok(())
}

/// Name of the lists of a route.
fn lists_name(g: &Graph, route: NodeId) -> String {
    format!("{}.lists", g.node(route).name)
}

/// The stages of a launch. Its blocks have one number of rows: either all compute on matrix units, or none.
fn parts<'a>(g: &Graph, s: &Schedule, stages: &'a [Stage], launch: &[u32]) -> Result<Vec<stage::Part<'a>>> {
    let of = |s: &Schedule| launch.iter().map(|&i| stage::Part::new(g, s, &stages[i as usize])).collect::<Result<Vec<_>>>();
    let mut parts = of(s)?;
    products::share(g, s, &mut parts)?;
    let rows = |p: &stage::Part| p.on_matrix_units().map(|(rows, _)| rows);
    if parts.iter().all(|p| rows(p) == rows(&parts[0])) { Ok(parts) } else { of(&Schedule { mma: 0, ..*s }) }
}

/// What each part needs of shared memory with so many rows a block.
fn needs(g: &Graph, parts: &[stage::Part], tile: u32) -> Vec<Vec<u32>> {
    let of = |p: &stage::Part| {
        if let Some((_, bytes)) = p.on_matrix_units() {
            return bytes.into_iter().filter(|b| *b > 0).collect();
        }
        let one = shared::of_stage(g, &p.stage.nodes);
        // Others go from row to row.
        if p.tiled { one.into_iter().map(|bytes| bytes * tile).collect() } else { one }
    };
    parts.iter().map(of).collect()
}

/// Rows of a block of this launch: more than one where a part gains by it, and no more than shared memory has room for.
fn tile(g: &Graph, s: &Schedule, parts: &[stage::Part]) -> u32 {
    if let Some(rows) = parts.iter().find_map(stage::Part::tile_rows) {
        return rows;
    }
    if let Some((rows, _)) = parts[0].on_matrix_units() {
        return rows;
    }
    // Logits are asked for of few rows.
    let most = if parts[0].rows == Rows::Outputs { s.tokens.min(2) } else { s.tokens };
    let most = if parts.iter().any(|p| p.tiled) { most } else { 1 };
    let fits = |t: &u32| shared::pooled(&needs(g, parts, *t)) <= shared::SHARED_BUDGET;
    [8, 4, 2].into_iter().filter(|t| *t <= most).find(fits).unwrap_or(1)
}

/// One kernel of one or more independent stages, each with its range of blocks along x.
fn emit(
    g: &Graph,
    s: &Schedule,
    parts: &[stage::Part],
    tile: u32,
    traced: bool,
    relaxed: &Relaxed,
) -> Result<(Kernel, Vec<ArgKey>)> {
    // A row beside a matmul of many blocks makes do with their warps: more would stand idle in all of them.
    let most = parts.iter().map(|p| p.grid_x).max().unwrap_or(1);
    let warps = parts.iter().filter(|p| most <= 32 || p.grid_x > 32).map(|p| p.warps).max().unwrap_or(1);
    let mut kx = Kx::new(g, *s, "k", warps, parts[0].rows, tile, needs(g, parts, tile));
    kx.traced = traced;
    kx.approximate = parts.iter().flat_map(|p| &p.stage.nodes).any(|&id| relaxed.approximate.contains(&g.node(id).name));
    if parts[0].on_matrix_units().is_some() {
        kx.b.min_blocks(mma::BLOCKS);
    } else if s.most_blocks > 0 && warps == s.warps {
        // As many as there are places for, so that each has the registers that are left; two at least, for the next kernel's.
        let grid: u32 = parts.iter().map(|p| p.grid_x).sum();
        kx.b.min_blocks((grid.saturating_mul(s.min_blocks) / s.most_blocks).clamp(s.min_blocks.min(2), s.min_blocks));
    }
    let bx = kx.b.block_x();
    if let [part] = parts {
        kx.begin_part();
        part.emit(&mut kx, bx)?;
    } else {
        let mut first = 0;
        let mut result = Ok(());
        for part in parts {
            let local = kx.b.add_c(bx, -(first as i32));
            let (zero, n) = (kx.b.i(0), kx.b.i(part.grid_x as i32));
            let (lo, hi) = (kx.b.icmp(ir::kernel::ICmp::Le, zero, local), kx.b.icmp(ir::kernel::ICmp::Lt, local, n));
            let here = kx.b.bool_op(ir::kernel::BoolOp::And, lo, hi);
            kx.when(here, |kx| {
                if result.is_ok() {
                    kx.begin_part();
                    result = part.emit(kx, local);
                }
            });
            first += part.grid_x;
        }
        result?;
    }
    let starts = std::mem::take(&mut kx.starts);
    let (mut kernel, args) = kx.finish();
    shared::overlay(&mut kernel, &starts);
    Ok((kernel, args))
}

/// A symbol from the stages' names, without the layer.
fn kernel_name(parts: &[stage::Part]) -> String {
    let mut out = String::new();
    for p in parts {
        if !out.is_empty() {
            out.push_str("__");
        }
        let short: Vec<&str> = p.stage.name.split('.').filter(|s| *s != "layers" && s.parse::<u32>().is_err()).collect();
        for c in short.join("_").chars() {
            out.push(if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' });
        }
    }
    format!("k_{out}")
}

/// The index of the kernel, added under a free name if no equal one is known.
fn intern(plan: &mut Plan, known: &mut BTreeMap<String, u32>, mut kernel: Kernel, name: &str) -> u32 {
    kernel.name = "k".into();
    let key = ir::kernel::text::print(&kernel);
    if let Some(i) = known.get(&key) {
        return *i;
    }
    let same = |n: &str| plan.kernels.iter().any(|k| k.name == n);
    kernel.name =
        (1..).map(|i| if i == 1 { name.to_string() } else { format!("{name}_{i}") }).find(|n| !same(n)).unwrap_or_default();
    plan.kernels.push(kernel);
    known.insert(key, plan.kernels.len() as u32 - 1);
    plan.kernels.len() as u32 - 1
}

/// The buffer or weight of a parameter, made at first use.
fn bind(g: &Graph, plan: &mut Plan, key: ArgKey) -> Result<Arg> {
    let weight = |plan: &mut Plan, tensor: String, pack: Pack| {
        let w = PackedWeight { tensor, pack };
        let i = plan.weights.iter().position(|x| *x == w).unwrap_or_else(|| {
            plan.weights.push(w);
            plan.weights.len() - 1
        });
        Arg::Weight(i as u32)
    };
    let buffer = |plan: &mut Plan, name: String, kind: BufferKind| {
        let i = plan.buffers.iter().position(|x| x.name == name).unwrap_or_else(|| {
            plan.buffers.push(Buffer { name, kind, offset: None });
            plan.buffers.len() - 1
        });
        Arg::Buffer(i as u32)
    };
    Ok(match key {
        ArgKey::Weight(id, pack) => weight(plan, g.node(id).name.clone(), pack),
        ArgKey::Rope(p) => weight(plan, "rope".into(), Pack::Rope(p)),
        ArgKey::Tokens => buffer(plan, "tokens".into(), BufferKind::Tokens),
        ArgKey::State => buffer(plan, "state".into(), BufferKind::State),
        ArgKey::Rows => buffer(plan, "rows".into(), BufferKind::Rows),
        ArgKey::Value(id) => {
            let kind = BufferKind::Value { rows: g.node(id).ty.rows, bytes: cx::row_bytes(g, id) };
            buffer(plan, g.node(id).name.clone(), kind)
        }
        ArgKey::Parts { heads, dim, window } => {
            let kind = BufferKind::Parts { rows: Rows::Tokens, heads, dim, window };
            buffer(plan, format!("parts.{heads}x{dim}.{window}"), kind)
        }
        ArgKey::Lists(route) => {
            let kind = BufferKind::Value { rows: g.node(route).ty.rows, bytes: dispatch::bytes(g, route) };
            buffer(plan, lists_name(g, route), kind)
        }
        ArgKey::Digests(of, id) => {
            let n = g.node(id);
            let name = match (of, &n.op) {
                (Written::Value, _) => n.name.clone(),
                (Written::Keys, Op::Kv { layer, .. }) => format!("kv.{layer}.keys"),
                (Written::Vals, Op::Kv { layer, .. }) => format!("kv.{layer}.values"),
                _ => return Err(Diagnostic::new("E0620", "expected a cache").at(&n.name)),
            };
            let rows = if of == Written::Value { n.ty.rows } else { Rows::Tokens };
            buffer(plan, format!("{DIGEST}{name}"), BufferKind::Digests { rows })
        }
        ArgKey::Keys(id) | ArgKey::Vals(id) => {
            let Op::Kv { layer, heads, dim, window } = g.node(id).op else {
                return Err(Diagnostic::new("E0620", "expected a cache").at(&g.node(id).name));
            };
            if matches!(key, ArgKey::Keys(_)) {
                buffer(plan, format!("kv.{layer}.keys"), BufferKind::Keys { layer, heads, dim, window })
            } else {
                buffer(plan, format!("kv.{layer}.values"), BufferKind::Values { layer, heads, dim, window })
            }
        }
    })
}

/// The layout of a matrix that is read by rows: that of the matmul that reads it too, if there is one.
fn table_layout(kx: &Kx, table: NodeId) -> Result<MatrixLayout> {
    let order = kx.g.users(table).into_iter().find_map(|u| match kx.g.node(u).op {
        Op::QLinear { order } | Op::Linear { order } => order,
        _ => None,
    });
    kx.layout(table, order.unwrap_or(ReductionOrder::contiguous(4)))
}

/// Blocks for so many tiles.
fn blocks(tiles: u32, per_block: u32) -> u32 {
    tiles.div_ceil(per_block.max(1))
}

/// `block * n + offset`
fn scaled(kx: &mut Kx, block: ir::kernel::V, n: u32, offset: ir::kernel::V) -> ir::kernel::V {
    let at = kx.b.int_c(IntOp::Mul, block, n as i32);
    kx.b.iadd(at, offset)
}

/// Rows of a stage: outputs if it stores any value per output.
fn stage_rows(g: &Graph, stores: &[NodeId]) -> Rows {
    if stores.iter().any(|&s| g.node(s).ty.rows == Rows::Outputs) { Rows::Outputs } else { Rows::Tokens }
}

/// `v` if it is below `n`, else `n - 1`; whether it was, unless that is certain.
fn clip(kx: &mut Kx, v: ir::kernel::V, n: u32, certain: bool) -> (ir::kernel::V, Option<ir::kernel::V>) {
    if certain {
        return (v, None);
    }
    let lim = kx.b.i(n as i32);
    let valid = kx.b.icmp(ir::kernel::ICmp::Lt, v, lim);
    let last = kx.b.i(n as i32 - 1);
    (kx.b.select(valid, v, last), Some(valid))
}
