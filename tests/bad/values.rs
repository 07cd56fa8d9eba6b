//! Weights that are not finite: generation stops at the first value that is not, named by position and operation. Only
//! a model that runs has its values looked at.

use super::model::Model;
use super::{Case, run, scratch};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The command that meets the models. No program depends on a tensor's numbers, so that one in the cache serves all.
const RUN: &str = "run model --cache-dir c --target x86-64-v3 --threads 1 -n 2 --ids 2,105";
const LARGE: &str = "runs the model";
const NAN: [u8; 2] = 0x7fc0u16.to_le_bytes();
const INFINITY: [u8; 2] = 0x7f80u16.to_le_bytes();
const MINUS_INFINITY: [u8; 2] = 0xff80u16.to_le_bytes();

/// A cache with the good model in it, filled once.
fn cache() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = scratch("values-cache");
        Model::new(&dir);
        let o = run(super::PROGRAM, &RUN.split(' ').map(String::from).collect::<Vec<_>>(), &dir, Default::default());
        assert_eq!(o.code(), Some(0), "{}", o.err);
        assert!(o.err.contains("; compiled in"), "{}", o.err);
        dir.join("c")
    })
}

/// A model with a value that is not finite.
fn damaged(name: &str, change: impl Fn(&Model) + 'static) -> Case {
    let make = move |m: &Model| {
        symlink(cache(), m.0.with_file_name("c")).unwrap();
        change(m);
    };
    super::model::damaged(name, make).run(RUN).large(LARGE)
}

/// All cases.
pub fn cases() -> Vec<Case> {
    let layer = |name: &str, tensor: &str, at: u64, value: [u8; 2]| {
        let tensor = format!("language_model.model.layers.3.{tensor}");
        damaged(name, move |m| m.poke(&tensor, at, &value))
    };
    // A row of the embedding has four groups of two bytes each.
    let embedding = |name: &str, part: &str, token: u64, value: [u8; 2]| {
        let tensor = format!("language_model.model.embed_tokens.{part}");
        damaged(name, move |m| m.poke(&tensor, token * 8, &value))
    };
    vec![
        layer("nan-in-a-scale", "self_attn.q_proj.scales", 0, NAN),
        layer("nan-in-a-scale-token-by-token", "self_attn.q_proj.scales", 0, NAN)
            .run(&RUN.replace("2,105", "2,105,7,9 --prefill-chunk 1")),
        layer("infinity-in-a-scale", "self_attn.q_proj.scales", 0, INFINITY),
        layer("infinity-in-an-offset", "self_attn.o_proj.biases", 2, INFINITY),
        layer("nan-in-a-norm", "input_layernorm.weight", 8, NAN),
        layer("infinity-in-a-norm-of-heads", "self_attn.q_norm.weight", 8, INFINITY),
        // A scale of each kind for the router: its input's, that of one group of one expert's row, and all experts' own.
        layer("nan-in-the-router-scale", "router.scale", 8, NAN),
        layer("nan-in-a-scale-of-the-router", "router.proj.scales", 8 * 5, NAN),
        // Of a group of one expert's row: the logit is an infinity of the one sign or the other.
        layer("infinity-in-an-offset-of-the-router", "router.proj.biases", 8 * 5, INFINITY),
        layer("minus-infinity-in-an-offset-of-the-router", "router.proj.biases", 8 * 5, MINUS_INFINITY),
        damaged("infinity-in-the-scales-of-experts", |m| {
            m.poke("language_model.model.layers.3.router.per_expert_scale", 0, &INFINITY.repeat(16))
        }),
        layer("nan-in-a-layer-scalar", "layer_scalar", 0, NAN),
        embedding("nan-in-the-embedding", "scales", 105, NAN),
        embedding("infinity-in-the-embedding", "biases", 105, INFINITY),
        embedding("nan-in-the-embedding-of-another-token", "scales", 3000, NAN),
    ]
}
