//! The page of `isobit dump --format html`, and Graphviz, without a browser: all that the page shows is in its data, and is what
//! the graph says. `tests/html/check.sh` opens it.
#![cfg(feature = "llvm")]

mod common;

use common::{model, through_passes};
use ir::graph::Graph;
use isobit::page::{Side, dot::dot, html};
use models::Checkpoint;
use models::gemma4::layers::graph;
use passes::Options;
use serde_json::Value;
use std::path::Path;

fn side(graph: Graph) -> Side {
    Side { title: "a".into(), graph, plan: None, digests: Default::default() }
}

fn data(page: &str) -> Value {
    let text = page.split("type=\"application/json\">").nth(1).unwrap().split("</script>").next().unwrap();
    serde_json::from_str(text).unwrap()
}

#[test]
fn the_page_says_what_the_graph_says() {
    let g = through_passes(model(), &Options::default());
    let mut s = side(g.clone());
    s.digests.insert("layers.3.resid".into(), "0123456789abcdef".into());
    let page = html(std::slice::from_ref(&s));
    assert_eq!(page, html(&[s]));
    let data = data(&page);
    let side = &data["sides"][0];
    let nodes = side["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), g.ids().count());
    let text = ir::graph::text::print(&g);
    for n in nodes {
        let (name, op, ty) = (n["n"].as_str().unwrap(), n["o"].as_str().unwrap(), n["t"].as_str().unwrap());
        let node = g.node(g.by_name(name).unwrap());
        let line = text.lines().find(|l| l.contains(&format!(" : {ty} \"{name}\""))).unwrap_or_else(|| panic!("{name}: {ty}"));
        assert!(line.contains(&format!(" = {op}")), "{line}");
        if let Some(order) = n["r"].as_str() {
            assert!(line.contains(&format!("order={order}}}")), "{line} without {order}");
        }
        let read: Vec<&str> =
            n["i"].as_array().into_iter().flatten().map(|i| nodes[i.as_u64().unwrap() as usize]["n"].as_str().unwrap()).collect();
        assert_eq!(read, node.inputs.iter().map(|i| g.node(*i).name.as_str()).collect::<Vec<_>>(), "{name}");
    }
    let digests: Vec<&Value> = nodes.iter().filter(|n| n.get("d").is_some()).collect();
    assert_eq!((digests.len(), &digests[0]["n"]), (1, &Value::from("layers.3.resid")));
    assert_eq!(side["stages"].as_array().unwrap().len(), g.stages.len());
    assert_eq!(side["launches"].as_array().unwrap().len(), g.launches.len());
}

#[test]
fn two_graphs_and_a_large_one() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/configs/26b-a4b-mlx-4bit");
    let ck = Checkpoint::with_random_weights(&dir, 1).unwrap_or_else(|d| panic!("{d}"));
    let large = graph(&ck, ir::graph::op::EmbedMode::Factor).unwrap_or_else(|d| panic!("{d}"));
    let large = side(through_passes(large, &Options::default()));
    let page = html(&[large.clone(), large]);
    let data = data(&page);
    assert_eq!(data["sides"].as_array().unwrap().len(), 2);
    println!("26B twice: {} bytes", page.len());
    assert!(page.len() < 1_000_000, "{} bytes: a browser should open it at once", page.len());
}

#[test]
fn a_picture_of_some_values_holds_what_they_read() {
    let g = through_passes(model(), &Options::default());
    let all = dot(&g, &|_| true);
    let edges: usize = g.ids().map(|id| g.node(id).inputs.len()).sum();
    assert_eq!((all.matches(" -> ").count(), all.matches(" [label=").count()), (edges, g.ids().count()));
    assert_eq!(all.matches('{').count(), all.matches('}').count());
    let one = dot(&g, &|name| name == "layers.2.attn.q_proj");
    assert_eq!((one.matches(" -> ").count(), one.matches(" [label=").count()), (2, 3));
    assert!(one.contains("layers.2.self_attn.q_proj") && one.contains("cluster_l"));
}
