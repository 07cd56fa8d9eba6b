//! Lists of launches as CUDA graphs. A list is captured for a grid, what was captured is compared with the list, and from then
//! on it is replayed. Nothing in a graph goes stale: what changes from step to step is in the state buffer.

use super::driver::{CUdeviceptr, CUfunction, Call, Gpu, check};
use cudarc::driver::sys;
use ir::diag::{Diagnostic, Result};
use std::ffi::CStr;
use std::ptr::null_mut;

/// Graphs that a list keeps; the one that was used longest ago makes room.
const KEPT: usize = 8;
/// Version of CUDA from which edges can say that a kernel starts early, and kernels have names.
const EDGES_WITH_DATA: u32 = 12030;

/// A captured list.
pub struct Graph(sys::CUgraphExec);

// SAFETY: driver objects may be used from any thread.
unsafe impl Send for Graph {}

impl Graph {
    /// Captures launches, and refuses what is not the same kernels in the same order.
    ///
    /// # Safety
    /// As for [`Gpu::launch`], for every launch and every replay.
    pub unsafe fn capture(gpu: &Gpu, calls: &[Call]) -> Result<Graph> {
        let what = |r, what: &str| check(r, "E0466", what);
        gpu.begin()?;
        // SAFETY: the stream lives; every pointer is to a place of the type that the call fills; the graph is given back once.
        unsafe {
            // No other call of this thread than launches comes before the end.
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            what(sys::cuStreamBeginCapture_v2(gpu.stream(), mode), "beginning a graph")?;
            let queued = calls.iter().try_for_each(|c| gpu.launch(c));
            let mut graph = null_mut();
            let ended = what(sys::cuStreamEndCapture(gpu.stream(), &mut graph), "ending a graph");
            let mut exec = null_mut();
            let made = queued.and(ended).and_then(|()| compare(calls, &nodes(gpu, graph, calls)?)).and_then(|()| {
                what(sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0), "making a graph ready")?;
                what(sys::cuGraphUpload(exec, gpu.stream()), "bringing a graph to the GPU")
            });
            if !graph.is_null() {
                let _ = sys::cuGraphDestroy(graph);
            }
            if let Err(d) = made {
                if !exec.is_null() {
                    Graph(exec).close(gpu);
                }
                return Err(d);
            }
            Ok(Graph(exec))
        }
    }

    /// Queues all of it.
    ///
    /// # Safety
    /// As for [`Graph::capture`]: what it was captured with still lives.
    pub unsafe fn launch(&self, gpu: &Gpu) -> Result<()> {
        gpu.begin()?;
        // SAFETY: the caller's promise.
        check(unsafe { sys::cuGraphLaunch(self.0, gpu.stream()) }, "E0444", "launching a graph")
    }

    /// Gives it back.
    pub fn close(self, gpu: &Gpu) {
        if gpu.begin().is_ok() {
            // SAFETY: it is given back once; the driver keeps what runs to its end.
            let _ = unsafe { sys::cuGraphExecDestroy(self.0) };
        }
    }
}

/// A kernel as a node of a graph has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    entry: CUfunction,
    grid: [u32; 3],
    threads: [u32; 3],
    /// If the driver tells.
    args: Option<Vec<CUdeviceptr>>,
}

/// The kernels of a graph in their order.
///
/// # Safety
/// `graph` lives.
unsafe fn nodes(gpu: &Gpu, graph: sys::CUgraph, calls: &[Call]) -> Result<Vec<Node>> {
    let what = |r| check(r, "E0466", "looking at a graph");
    let mut count = 0;
    // SAFETY: the driver fills as many places as it is told there are; without places it counts.
    unsafe {
        what(sys::cuGraphGetNodes(graph, null_mut(), &mut count))?;
        let mut all = vec![null_mut(); count];
        what(sys::cuGraphGetNodes(graph, all.as_mut_ptr(), &mut count))?;
        let edges = edges(gpu, graph)?;
        let index = |n: &sys::CUgraphNode| all.iter().position(|a| a == n).unwrap_or(usize::MAX);
        let edges: Vec<(usize, usize)> = edges.iter().map(|(a, b)| (index(a), index(b))).collect();
        let order = order(count, &edges).ok_or_else(|| {
            Diagnostic::new("E0465", format!("the {count} nodes of a captured graph are not one after the other"))
        })?;
        let mut out = vec![];
        for (i, call) in order.into_iter().zip(calls.iter().map(Some).chain(std::iter::repeat(None))) {
            let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
            what(sys::cuGraphNodeGetType(all[i], &mut kind))?;
            if kind != sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL {
                return Err(Diagnostic::new("E0465", "a captured graph has a node that is no kernel"));
            }
            let mut p: sys::CUDA_KERNEL_NODE_PARAMS = std::mem::zeroed();
            what(sys::cuGraphKernelNodeGetParams_v2(all[i], &mut p))?;
            if p.func.is_null() && !p.kern.is_null() {
                what(sys::cuKernelGetFunction(&mut p.func, p.kern))?;
            }
            // A driver may name a kernel by another handle than the one it gave.
            if let Some(c) = call.filter(|c| c.entry != p.func && function_name(gpu, p.func).as_deref() == Some(c.name)) {
                p.func = c.entry;
            }
            // The same kernel has as many arguments.
            let args = call.filter(|c| c.entry == p.func && !p.kernelParams.is_null());
            let args = args.map(|c| (0..c.args.len()).map(|k| (*p.kernelParams.add(k)).cast::<CUdeviceptr>().read()).collect());
            out.push(Node {
                entry: p.func,
                grid: [p.gridDimX, p.gridDimY, p.gridDimZ],
                threads: [p.blockDimX, p.blockDimY, p.blockDimZ],
                args,
            });
        }
        Ok(out)
    }
}

/// The name of a kernel, if the driver tells.
fn function_name(gpu: &Gpu, f: CUfunction) -> Option<String> {
    let mut name = std::ptr::null();
    // SAFETY: `f` came from the driver; its names live as long as its code.
    let told = gpu.about.driver >= EDGES_WITH_DATA
        && unsafe { sys::cuFuncGetName(&mut name, f) } == sys::CUresult::CUDA_SUCCESS
        && !name.is_null();
    // SAFETY: as above.
    told.then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

/// Pairs of nodes of which the second comes after the first.
///
/// # Safety
/// `graph` lives.
unsafe fn edges(gpu: &Gpu, graph: sys::CUgraph) -> Result<Vec<(sys::CUgraphNode, sys::CUgraphNode)>> {
    let data = gpu.about.driver >= EDGES_WITH_DATA;
    let get = |from: *mut sys::CUgraphNode, to: *mut sys::CUgraphNode, kinds: *mut sys::CUgraphEdgeData, n: &mut usize| {
        // SAFETY: the caller's promise; places are as many as `n` says, or none.
        let r = unsafe {
            if data { sys::cuGraphGetEdges_v2(graph, from, to, kinds, n) } else { sys::cuGraphGetEdges(graph, from, to, n) }
        };
        check(r, "E0466", "looking at a graph")
    };
    let mut n = 0;
    get(null_mut(), null_mut(), null_mut(), &mut n)?;
    let (mut from, mut to) = (vec![null_mut(); n], vec![null_mut(); n]);
    let mut kinds = vec![sys::CUgraphEdgeData { from_port: 0, to_port: 0, type_: 0, reserved: [0; 5] }; n];
    if n > 0 {
        get(from.as_mut_ptr(), to.as_mut_ptr(), kinds.as_mut_ptr(), &mut n)?;
    }
    Ok(from.into_iter().zip(to).take(n).collect())
}

/// The only order that keeps these edges; none if there are several, or none at all.
fn order(count: usize, edges: &[(usize, usize)]) -> Option<Vec<usize>> {
    let mut before = vec![0usize; count];
    let mut after = vec![vec![]; count];
    for &(from, to) in edges {
        *before.get_mut(to)? += 1;
        after.get_mut(from)?.push(to);
    }
    let mut ready: Vec<usize> = (0..count).filter(|&i| before[i] == 0).collect();
    let mut out = vec![];
    while let Some(i) = ready.pop() {
        if !ready.is_empty() {
            return None;
        }
        out.push(i);
        for &to in &after[i] {
            before[to] -= 1;
            if before[to] == 0 {
                ready.push(to);
            }
        }
    }
    (out.len() == count).then_some(out)
}

/// Refuses a graph that is not the list.
fn compare(calls: &[Call], found: &[Node]) -> Result<()> {
    if calls.len() != found.len() {
        let message = format!("a captured graph has {} kernels, the list {}", found.len(), calls.len());
        return Err(Diagnostic::new("E0465", message));
    }
    for (i, (c, n)) in calls.iter().zip(found).enumerate() {
        let expected = Node {
            entry: c.entry,
            grid: [c.grid[0], c.grid[1], 1],
            threads: [c.threads, 1, 1],
            args: n.args.as_ref().map(|_| c.args.to_vec()),
        };
        if *n != expected {
            let message = format!("kernel {i} of a captured graph is not that of the list: expected {expected:?}, found {n:?}");
            return Err(Diagnostic::new("E0465", message).at(c.name));
        }
    }
    Ok(())
}

/// What to do with a list and a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Todo {
    /// It comes for the first time: launch it.
    Launch,
    /// It comes again: capture it.
    Capture,
    /// Replay what was captured.
    Replay,
}

/// The graphs of a list by their grids, a few of them.
pub struct Graphs<T> {
    /// Extents along y, and what was captured for them; the last was used last.
    entries: Vec<(Vec<u32>, Option<T>)>,
}

impl<T> Default for Graphs<T> {
    fn default() -> Self {
        Graphs { entries: vec![] }
    }
}

impl<T> Graphs<T> {
    /// What to do with this grid; with the entry that made room for it, if one did.
    pub fn todo(&mut self, ys: &[u32]) -> (Todo, Option<T>) {
        let Some(i) = self.entries.iter().position(|(k, _)| k == ys) else {
            let old = if self.entries.len() == KEPT { self.entries.remove(0).1 } else { None };
            self.entries.push((ys.to_vec(), None));
            return (Todo::Launch, old);
        };
        let entry = self.entries.remove(i);
        let todo = if entry.1.is_some() { Todo::Replay } else { Todo::Capture };
        self.entries.push(entry);
        (todo, None)
    }

    /// Keeps what was captured for the grid that was asked for last.
    pub fn keep(&mut self, graph: T) {
        if let Some(e) = self.entries.last_mut() {
            e.1 = Some(graph);
        }
    }

    /// What was captured for the grid that was asked for last.
    pub fn last(&self) -> Option<&T> {
        self.entries.last()?.1.as_ref()
    }

    /// All of them, to be given back.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.entries.drain(..).filter_map(|e| e.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_is_captured_when_it_comes_again() {
        let mut g = Graphs::default();
        assert_eq!(g.todo(&[1, 1]), (Todo::Launch, None));
        assert_eq!(g.todo(&[2, 1]), (Todo::Launch, None));
        assert_eq!(g.todo(&[1, 1]), (Todo::Capture, None));
        g.keep("a");
        assert_eq!(g.todo(&[1, 1]), (Todo::Replay, None));
        assert_eq!(g.last(), Some(&"a"));
        // A capture that failed is tried again.
        assert_eq!(g.todo(&[2, 1]), (Todo::Capture, None));
        assert_eq!(g.todo(&[2, 1]), (Todo::Capture, None));
        // Others make room; what was used last stays.
        let gone: Vec<&str> = (10..10 + KEPT as u32).filter_map(|y| g.todo(&[y, 1]).1).collect();
        assert_eq!(gone, ["a"]);
        assert_eq!(g.todo(&[1, 1]), (Todo::Launch, None));
        assert_eq!(g.entries.len(), KEPT);
    }

    #[test]
    fn an_order_is_the_only_one() {
        assert_eq!(order(3, &[(2, 0), (0, 1)]), Some(vec![2, 0, 1]));
        assert_eq!(order(3, &[(2, 0), (0, 1), (2, 1)]), Some(vec![2, 0, 1]), "an edge more");
        assert_eq!(order(3, &[(2, 0), (2, 1)]), None, "two at once");
        assert_eq!(order(2, &[]), None);
        assert_eq!(order(2, &[(0, 1), (1, 0)]), None, "a circle");
        assert_eq!(order(1, &[(0, usize::MAX)]), None, "an unknown node");
        assert_eq!((order(0, &[]), order(1, &[])), (Some(vec![]), Some(vec![0])));
    }

    #[test]
    fn a_graph_that_is_not_the_list_is_refused() {
        let entry = |n: usize| n as CUfunction;
        let args = [[256, 512], [512, 768]];
        let call = |i: usize| Call {
            entry: entry(i + 1),
            name: "k",
            grid: [7, 1 + i as u32],
            threads: 128,
            args: &args[i],
            dependent: false,
        };
        let calls = [call(0), call(1)];
        let of = |c: &Call| Node {
            entry: c.entry,
            grid: [c.grid[0], c.grid[1], 1],
            threads: [c.threads, 1, 1],
            args: Some(c.args.to_vec()),
        };
        let good = vec![of(&calls[0]), of(&calls[1])];
        assert!(compare(&calls, &good).is_ok());
        assert!(compare(&calls, &[good[1].clone(), good[0].clone()]).is_err(), "another order");
        assert!(compare(&calls, &good[..1]).is_err(), "one less");
        let with = |f: &dyn Fn(&mut Node)| {
            let mut bad = good.clone();
            f(&mut bad[1]);
            compare(&calls, &bad)
        };
        assert!(with(&|n| n.args = None).is_ok(), "a driver that does not tell");
        for bad in [
            with(&|n| n.grid[1] = 1),
            with(&|n| n.threads[0] = 64),
            with(&|n| n.entry = entry(1)),
            with(&|n| n.args = Some(vec![512, 769])),
        ] {
            let d = bad.unwrap_err();
            assert!(d.code == "E0465" && d.message.contains("kernel 1 of a captured graph"), "{d}");
        }
    }
}
