//! Shards and folders of checkpoints, sound and damaged. What the program says of bad ones is in the table of bad inputs
//! (`tests/bad_inputs.rs` of the root package).

mod common;

use common::*;
use models::Checkpoint;
use std::borrow::Cow;

#[test]
fn shards() {
    let (a, b) = (zeros(&[EMBED]), zeros(&[("model.norm.weight", "BF16", &[2])]));
    let c = open(&config(), &[("m-1.safetensors", a.clone()), ("m-2.safetensors", b.clone())]).unwrap();
    assert_eq!((c.prefix(), c.tensor("norm.weight").unwrap().file), ("model.", "m-2.safetensors"));
    let names: Vec<&str> = c.tensors().map(|t| t.name).collect();
    assert_eq!(names, ["model.embed_tokens.weight", "model.norm.weight"]);
    // The headers decide: an index that lies is not read.
    let index = ("model.safetensors.index.json", b"{\"weight_map\":{\"model.norm.weight\":\"gone\"}}".to_vec());
    assert!(open(&config(), &[("m.safetensors", a.clone()), index]).is_ok());
    let twice = open(&config(), &[("x.safetensors", a.clone()), ("y.safetensors", a.clone())]);
    says(twice.err().unwrap().to_string(), "model.embed_tokens.weight is in two files, x.safetensors and y.safetensors");
    let both = zeros(&[EMBED, ("language_model.model.embed_tokens.weight", "BF16", &[2, 2])]);
    says(refused(both), "several text decoders here, named language_model.model. and model.");
    says(
        refused(b),
        "no embed_tokens.weight\nhint: looked for the prefixes language_model.model. model.language_model. model.; the names here begin with: model.norm.weight",
    );
}

#[test]
fn folders() {
    let f = Folder::new("bad_checkpoints_folders");
    f.put("config.json", config().to_string());
    f.put("m.safetensors", zeros(&[EMBED]));
    f.put("._m.safetensors", "litter");
    assert!(Checkpoint::open(&f.0).is_ok());
    std::os::unix::fs::symlink("gone", f.0.join("tokenizer.json")).unwrap();
    says(f.refused(), "tokenizer.json: cannot be read: No such file");
    let twice = vec![("config.json".to_string(), Cow::Borrowed(&b"{}"[..])); 2];
    says(Checkpoint::from_memory(twice).err().unwrap().to_string(), "the file config.json is given twice");
}
