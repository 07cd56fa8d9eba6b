//! What `isobit inspect` says of a configuration without tensors is what it says of the checkpoint.

#[test]
fn a_configuration_tells_what_its_checkpoint_holds() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders =
        ["models/demo/mlx-4bit", "tests/fixtures/tiny-ple/mlx", "tests/fixtures/tiny-moe/mlx", "tests/fixtures/tiny-dense/hf"];
    for folder in folders {
        let ck = models::Checkpoint::open(&dir.join(folder)).unwrap_or_else(|d| panic!("{d}"));
        let graph = models::gemma4::layers::graph(&ck, ir::graph::op::EmbedMode::Exact).unwrap_or_else(|d| panic!("{d}"));
        let want = isobit::inventory::parts(&graph);
        assert_eq!(isobit::inventory::parts_of_config(ck.config()), want, "{folder}");
        assert!(want.len() >= 5);
    }
}
