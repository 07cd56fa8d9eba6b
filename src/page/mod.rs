//! A graph to look at: one HTML page that needs nothing else ([`html`]), and Graphviz ([`dot`]). The page holds one graph or
//! two, laid side by side by the names of values. The same graphs give the same bytes.

pub mod dot;

use ir::graph::text::attributes_of;
use ir::graph::{Graph, NodeId};
use ir::plan::{BufferKind, Plan};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The page; `DATA` in it becomes the graphs.
const TEMPLATE: &str = include_str!("page.html");
const DATA: &str = "@DATA@";

/// One graph with what is known of it.
#[derive(Clone, Debug)]
pub struct Side {
    /// What it is called in the page.
    pub title: String,
    /// The graph, with its stages and launches if fusion has run.
    pub graph: Graph,
    /// The plan that its launches became.
    pub plan: Option<Plan>,
    /// Digests of values, by name, if a run was traced.
    pub digests: BTreeMap<String, String>,
}

/// The attributes of a node without its order, with decimals beside bits, and the order.
pub fn attributes(graph: &Graph, id: NodeId) -> (String, String) {
    let (attrs, decimals) = attributes_of(&graph.node(id).op);
    let (attrs, order) = match attrs.split_once("order=") {
        Some((before, order)) => (before.trim_end_matches(", ").to_string(), order.to_string()),
        None => (attrs, String::new()),
    };
    (if decimals.is_empty() { attrs } else { format!("{attrs} ({decimals})") }, order)
}

impl Side {
    fn json(&self) -> Value {
        let g = &self.graph;
        let ids = g.topo();
        let place: BTreeMap<NodeId, usize> = ids.iter().enumerate().map(|(i, id)| (*id, i)).collect();
        let at = |ids: &[NodeId]| ids.iter().filter_map(|id| place.get(id)).collect::<Vec<_>>();
        let nodes: Vec<Value> = ids
            .iter()
            .map(|&id| {
                let n = g.node(id);
                let (attrs, order) = attributes(g, id);
                let mut o = json!({ "n": n.name, "o": n.op.name(), "t": n.ty.to_string() });
                let mut put = |key: &str, value: Value, empty: bool| {
                    if !empty {
                        o[key] = value;
                    }
                };
                put("a", json!(attrs), attrs.is_empty());
                put("r", json!(order), order.is_empty());
                put("i", json!(at(&n.inputs)), n.inputs.is_empty());
                if let Some(d) = self.digests.get(&n.name) {
                    put("d", json!(d), false);
                }
                o
            })
            .collect();
        let stages: Vec<Value> = g.stages.iter().map(|s| json!({ "n": s.name, "v": at(&s.nodes), "w": at(&s.stores) })).collect();
        let mut out = json!({
            "title": self.title, "nodes": nodes, "outputs": at(&g.outputs), "stages": stages, "launches": g.launches,
        });
        if let Some(plan) = &self.plan {
            let kernel = |k: u32| plan.kernels.get(k as usize);
            let launches = plan.launches.iter().map(|l| {
                let k = kernel(l.kernel);
                json!({
                    "n": l.name, "k": k.map(|k| &k.name), "x": l.grid_x, "y": l.tokens,
                    "w": k.map(|k| k.warps), "s": k.map(|k| k.shared_layout().1),
                })
            });
            out["plan"] = launches.collect();
            let buffers = plan.buffers.iter().filter_map(|b| match b.kind {
                BufferKind::Value { bytes, .. } => Some((b.name.clone(), json!(bytes))),
                _ => None,
            });
            out["buffers"] = Value::Object(buffers.collect());
        }
        out
    }
}

/// The page of one graph, or of two side by side.
pub fn html(sides: &[Side]) -> String {
    let data = json!({ "format": 1, "sides": sides.iter().map(Side::json).collect::<Vec<_>>() }).to_string();
    // Nothing in a name can end the element that holds the data.
    TEMPLATE.replacen(DATA, &data.replace('<', "\\u003c"), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(name: &str) -> Side {
        let text = format!(
            "graph \"t\" {{\n  %0 = tokens : i32[T] \"tokens\"\n  %1 = weight : u4g32[64,64] \"w\"\n  \
             %2 = embed %1 %0 {{mode=factor, factor=8}} : f32[T,64] \"{name}\"\n  output %2\n}}\n"
        );
        let graph = ir::graph::text::parse(&text).unwrap();
        Side { title: "t".into(), graph, plan: None, digests: [(name.to_string(), "00ff".to_string())].into() }
    }

    #[test]
    fn a_name_cannot_end_the_data() {
        let page = html(&[side("</script><b>")]);
        assert_eq!(page.matches("</script>").count(), TEMPLATE.matches("</script>").count());
        assert!(page.contains("\\u003c/script>\\u003cb>") && page.contains("00ff"));
    }

    #[test]
    fn a_template_has_one_place_for_data_and_asks_nobody() {
        assert_eq!(TEMPLATE.matches(DATA).count(), 1);
        for word in ["http://", "https://", "src=", "@import", "url(", "fetch(", "XMLHttp", "Date", "random"] {
            assert!(!TEMPLATE.contains(word), "{word}");
        }
    }

    #[test]
    fn attributes_with_decimals() {
        let s = side("x");
        let id = s.graph.by_name("x").unwrap();
        assert_eq!(attributes(&s.graph, id), ("mode=factor, factor=0x41000000 (8.0)".into(), String::new()));
    }
}
